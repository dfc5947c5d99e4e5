/* The treap and the list of the track layer's live blocks. Every operation takes time in the
 * logarithm of their number and calls nobody. */
#include "layers/track_index.h"

static bool key_below(quay__track_key a, quay__track_key b) {
  if (a.addressed != b.addressed) {
    return !a.addressed;
  }
  if (a.value != b.value) {
    return a.value < b.value;
  }
  if (a.sized != b.sized) {
    return !a.sized;
  }
  return a.serial < b.serial;
}

/* Spreads the serial numbers, so that the order in which blocks are made says nothing about their
 * place in the tree. The finaliser of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom
 * number generators", 2014). */
static uint64_t spread(uint64_t value) {
  value += 0x9e3779b97f4a7c15u;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

static void list_append(quay__track_index *index, quay__track_entry *entry) {
  entry->older = index->youngest;
  entry->younger = NULL;
  if (index->youngest != NULL) {
    index->youngest->younger = entry;
  } else {
    index->oldest = entry;
  }
  index->youngest = entry;
}

static void list_remove(quay__track_index *index, quay__track_entry *entry) {
  if (entry->older != NULL) {
    entry->older->younger = entry->younger;
  } else {
    index->oldest = entry->younger;
  }
  if (entry->younger != NULL) {
    entry->younger->older = entry->older;
  } else {
    index->youngest = entry->older;
  }
}

/* Goes down to the first subtree of lower priority, puts the entry there, and splits that subtree
 * into what belongs left and right of it. */
static void tree_insert(quay__track_entry **link, quay__track_entry *entry) {
  while (*link != NULL && (*link)->priority >= entry->priority) {
    link = key_below(entry->key, (*link)->key) ? &(*link)->left : &(*link)->right;
  }
  quay__track_entry *rest = *link;
  quay__track_entry **left = &entry->left, **right = &entry->right;
  *link = entry;
  while (rest != NULL) {
    if (key_below(rest->key, entry->key)) {
      *left = rest;
      left = &rest->right;
      rest = rest->right;
    } else {
      *right = rest;
      right = &rest->left;
      rest = rest->left;
    }
  }
  *left = NULL;
  *right = NULL;
}

/* Finds the entry and puts its two subtrees, merged, in its place. */
static void tree_remove(quay__track_entry **link, const quay__track_entry *entry) {
  while (*link != entry) {
    link = key_below(entry->key, (*link)->key) ? &(*link)->left : &(*link)->right;
  }
  quay__track_entry *left = entry->left, *right = entry->right;
  while (left != NULL && right != NULL) {
    if (left->priority >= right->priority) {
      *link = left;
      link = &left->right;
      left = left->right;
    } else {
      *link = right;
      link = &right->left;
      right = right->left;
    }
  }
  *link = left != NULL ? left : right;
}

void quay__track_index_add(quay__track_index *index, quay__track_entry *entry) {
  entry->priority = spread(entry->key.serial);
  tree_insert(&index->root, entry);
  list_append(index, entry);
  if (!entry->reserved) {
    index->count++;
    index->bytes += entry->size;
  }
}

void quay__track_index_remove(quay__track_index *index, quay__track_entry *entry) {
  tree_remove(&index->root, entry);
  list_remove(index, entry);
  if (!entry->reserved) {
    index->count--;
    index->bytes -= entry->size;
  }
}

quay__track_entry *quay__track_index_from(const quay__track_index *index, quay__track_key key) {
  quay__track_entry *best = NULL;
  for (quay__track_entry *entry = index->root; entry != NULL;) {
    if (key_below(entry->key, key)) {
      entry = entry->right;
    } else {
      best = entry;
      entry = entry->left;
    }
  }
  return best;
}

quay__track_entry *quay__track_index_before(const quay__track_index *index, quay__track_key key) {
  quay__track_entry *best = NULL;
  for (quay__track_entry *entry = index->root; entry != NULL;) {
    if (key_below(entry->key, key)) {
      best = entry;
      entry = entry->right;
    } else {
      entry = entry->left;
    }
  }
  return best;
}

quay__track_entry *quay__track_index_holder(const quay__track_index *index, uint64_t address) {
  quay__track_key key = {.addressed = true, .sized = true, .value = address, .serial = UINT64_MAX};
  quay__track_entry *entry = quay__track_index_before(index, key);
  /* Empty blocks can stand between the holder's first byte and `address`. */
  while (entry != NULL && entry->key.addressed && !entry->key.sized) {
    entry = quay__track_index_before(index, entry->key);
  }
  if (entry == NULL || !entry->key.addressed) {
    return NULL;
  }
  return address - entry->key.value < entry->size ? entry : NULL;
}

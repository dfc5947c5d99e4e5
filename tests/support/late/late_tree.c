/* An interval tree: a treap by beginning, in which every node knows how far its subtree reaches. */
#include "late_internal.h"

static bool before(const late_node *a, const late_node *b) {
  return a->begin != b->begin ? a->begin < b->begin : a->order < b->order;
}

static void update(late_node *node) {
  node->last_end = node->end;
  if (node->left != NULL && node->left->last_end > node->last_end)
    node->last_end = node->left->last_end;
  if (node->right != NULL && node->right->last_end > node->last_end)
    node->last_end = node->right->last_end;
}

/* All of `left` comes before all of `right`. */
static late_node *merge(late_node *left, late_node *right) {
  if (left == NULL || right == NULL)
    return left != NULL ? left : right;
  if (left->priority > right->priority) {
    left->right = merge(left->right, right);
    update(left);
    return left;
  }
  right->left = merge(left, right->left);
  update(right);
  return right;
}

/* Splits into what comes before `node` and the rest. */
static void split(late_node *root, const late_node *node, late_node **out_left,
                  late_node **out_right) {
  if (root == NULL) {
    *out_left = *out_right = NULL;
  } else if (before(root, node)) {
    split(root->right, node, &root->right, out_right);
    update(root);
    *out_left = root;
  } else {
    split(root->left, node, out_left, &root->left);
    update(root);
    *out_right = root;
  }
}

void late_tree_insert(late_tree *tree, late_node *node) {
  node->left = node->right = NULL;
  node->order = tree->next_order++;
  node->priority = late_random(&tree->random);
  update(node);
  late_node *left;
  late_node *right;
  split(tree->root, node, &left, &right);
  tree->root = merge(merge(left, node), right);
  tree->count++;
}

static late_node *without(late_node *root, const late_node *node) {
  if (root == node)
    return merge(root->left, root->right);
  if (before(node, root)) {
    root->left = without(root->left, node);
  } else {
    root->right = without(root->right, node);
  }
  update(root);
  return root;
}

void late_tree_remove(late_tree *tree, late_node *node) {
  tree->root = without(tree->root, node);
  tree->count--;
}

static void visit(late_node *node, uint64_t begin, uint64_t end, late_node_visitor visitor,
                  void *user) {
  if (node == NULL || node->last_end <= begin)
    return;
  visit(node->left, begin, end, visitor, user);
  if (node->begin >= end)
    return;
  if (node->end > begin)
    visitor(user, node);
  visit(node->right, begin, end, visitor, user);
}

void late_tree_visit(late_tree *tree, uint64_t begin, uint64_t end, late_node_visitor visitor,
                     void *user) {
  visit(tree->root, begin, end, visitor, user);
}

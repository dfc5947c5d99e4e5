/* Tables on stdout. */
#include "table.h"

#include <stdio.h>
#include <stdlib.h>

#include "text.h"

void table_init(text_table *table, const table_column *columns, size_t count) {
  *table = (text_table){.columns = columns, .column_count = count};
}

static bool grow(text_table *table) {
  const size_t capacity = table->capacity == 0 ? 64 : table->capacity * 2;
  char **cells = reallocarray(table->cells, capacity, sizeof *cells);
  if (cells == NULL)
    return false;
  table->cells = cells;
  table->capacity = capacity;
  return true;
}

void table_add(text_table *table, const char *text) {
  if (table->failed)
    return;
  char *cell = text == NULL ? NULL : text_printable(text);
  if (cell == NULL || (table->cell_count == table->capacity && !grow(table))) {
    free(cell);
    table->failed = true;
    return;
  }
  table->cells[table->cell_count++] = cell;
}

static void print_cell(const char *text, size_t width, bool right, bool last) {
  const size_t own = text_width(text);
  const int padding = own < width ? (int)(width - own) : 0;
  if (right)
    printf("%*s", padding, "");
  fputs(text, stdout);
  if (!right && !last)
    printf("%*s", padding, "");
  fputs(last ? "\n" : "  ", stdout);
}

/* `cells` NULL: the titles. */
static void print_row(const text_table *table, const size_t *widths, char *const *cells) {
  for (size_t i = 0; i < table->column_count; ++i) {
    const char *text = cells != NULL ? cells[i] : table->columns[i].title;
    print_cell(text, widths[i], table->columns[i].right, i + 1 == table->column_count);
  }
}

static void measure(const text_table *table, size_t *widths) {
  for (size_t i = 0; i < table->column_count; ++i) {
    widths[i] = text_width(table->columns[i].title);
    for (size_t cell = i; cell < table->cell_count; cell += table->column_count) {
      const size_t width = text_width(table->cells[cell]);
      if (width > widths[i])
        widths[i] = width;
    }
  }
}

bool table_print(text_table *table) {
  const bool complete = !table->failed;
  if (complete) {
    size_t widths[TABLE_COLUMNS_MAX] = {0};
    measure(table, widths);
    print_row(table, widths, NULL);
    for (size_t cell = 0; cell < table->cell_count; cell += table->column_count)
      print_row(table, widths, table->cells + cell);
  }
  for (size_t i = 0; i < table->cell_count; ++i)
    free(table->cells[i]);
  free(table->cells);
  *table = (text_table){.columns = NULL};
  return complete;
}

/* Tables on stdout: columns as wide as what stands in them. */
#ifndef QUAY_TOOLS_TABLE_H
#define QUAY_TOOLS_TABLE_H

#include <stdbool.h>
#include <stddef.h>

#define TABLE_COLUMNS_MAX 8

typedef struct table_column {
  const char *title;
  bool right; /* numbers stand at the right */
} table_column;

typedef struct text_table {
  const table_column *columns;
  size_t column_count;
  char **cells; /* row after row */
  size_t cell_count, capacity;
  bool failed; /* there was no memory for a cell */
} text_table;

void table_init(text_table *table, const table_column *columns, size_t count);

/* Adds a copy of `text`, made printable, as the next cell; a NULL counts as lost memory. */
void table_add(text_table *table, const char *text);

/* Prints titles and rows and frees everything. False if there was no memory for all of it. */
bool table_print(text_table *table);

#endif

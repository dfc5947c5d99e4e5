/* The heat map of quay matrix. */
#include <stdio.h>
#include <stdlib.h>

#include "core/atomic_file.h"
#include "matrix.h"
#include "signals.h"
#include "text.h"

enum {
  CELL_WIDTH = 96,
  CELL_HEIGHT = 44,
  LEFT = 210,
  TOP = 90,
  MARGIN = 20,
};

/* Text in XML. */
static void write_text(FILE *file, const char *text) {
  for (; *text != '\0'; ++text) {
    switch (*text) {
    case '&':
      fputs("&amp;", file);
      break;
    case '<':
      fputs("&lt;", file);
      break;
    case '>':
      fputs("&gt;", file);
      break;
    case '"':
      fputs("&quot;", file);
      break;
    default:
      fputc(*text, file);
    }
  }
}

static void write_label(FILE *file, int x, int y, const char *anchor, const char *text) {
  char printable[128];
  text_print(text, printable, sizeof printable);
  fprintf(file, "<text x=\"%d\" y=\"%d\" text-anchor=\"%s\">", x, y, anchor);
  write_text(file, printable);
  fputs("</text>\n", file);
}

/* From red, a third of the limit or less, to green, all of it; grey where none is known. */
static void write_color(FILE *file, const matrix_pair *pair) {
  if (pair->limit <= 0) {
    fputs("#d9d9d9", file);
    return;
  }
  double part = (pair->gbps / pair->limit - 1.0 / 3) * 1.5;
  part = part < 0 ? 0 : part > 1 ? 1 : part;
  fprintf(file, "hsl(%.0f,70%%,70%%)", 120 * part);
}

static void write_cell(FILE *file, const matrix_result *result, size_t from, size_t to) {
  const matrix_pair *pair = &result->pairs[from * result->place_count + to];
  const int x = LEFT + (int)to * CELL_WIDTH, y = TOP + (int)from * CELL_HEIGHT;
  char rate[32], below[64];
  snprintf(rate, sizeof rate, "%.3g", pair->gbps);
  if (pair->limit > 0) {
    snprintf(below, sizeof below, "%s %.2f", quay_route_name(pair->route),
             pair->gbps / pair->limit);
  } else {
    snprintf(below, sizeof below, "%s", quay_route_name(pair->route));
  }
  fprintf(file, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" stroke=\"#fff\" fill=\"", x, y,
          CELL_WIDTH, CELL_HEIGHT);
  write_color(file, pair);
  fputs("\"/>\n", file);
  write_label(file, x + CELL_WIDTH / 2, y + 19, "middle", rate);
  fputs("<g font-size=\"10\">", file);
  write_label(file, x + CELL_WIDTH / 2, y + 35, "middle", below);
  fputs("</g>\n", file);
}

static void write_all(FILE *file, const matrix_result *result) {
  const int count = (int)result->place_count;
  char size[TEXT_SIZE_MAX], title[160];
  text_of_size(result->size, size);
  snprintf(title, sizeof title,
           "Copies of %s, GB/s; below, the route and the part of the raw limit", size);
  fprintf(file,
          "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
          "font-family=\"sans-serif\" font-size=\"13\">\n<rect width=\"100%%\" height=\"100%%\" "
          "fill=\"#fff\"/>\n",
          LEFT + count * CELL_WIDTH + MARGIN, TOP + count * CELL_HEIGHT + MARGIN);
  write_label(file, MARGIN, 24, "start", title);
  write_label(file, LEFT - 10, TOP - 12, "end", "from \\ to");
  for (int i = 0; i < count; ++i) {
    const char *name = result->places[i].name;
    write_label(file, LEFT - 10, TOP + i * CELL_HEIGHT + CELL_HEIGHT / 2 + 5, "end", name);
    /* Names of neighbours stand at two heights, since they are wider than a cell. */
    fputs("<g font-size=\"10\">", file);
    write_label(file, LEFT + i * CELL_WIDTH + CELL_WIDTH / 2, TOP - (i % 2 == 0 ? 8 : 24), "middle",
                name);
    fputs("</g>\n", file);
  }
  for (size_t from = 0; from < result->place_count; ++from) {
    for (size_t to = 0; to < result->place_count; ++to)
      write_cell(file, result, from, to);
  }
  fputs("</svg>\n", file);
}

/* The text of the drawing, to be freed; NULL for want of memory. */
static char *draw(const matrix_result *result, size_t *out_size) {
  char *text = NULL;
  FILE *stream = open_memstream(&text, out_size);
  if (stream == NULL)
    return NULL;
  write_all(stream, result);
  const bool written = ferror(stream) == 0;
  if (fclose(stream) == 0 && written)
    return text;
  free(text);
  return NULL;
}

exit_status matrix_draw(const matrix_result *result, const char *path) {
  size_t size = 0;
  char *text = draw(result, &size);
  if (text == NULL)
    return fail_memory();
  quay__atomic_file file = QUAY__ATOMIC_FILE_NONE;
  signals_catch();
  quay_status status = quay__atomic_file_begin(path, 0, &file);
  if (status == QUAY_OK)
    status = quay__atomic_file_write(&file, 0, text, size);
  status = status == QUAY_OK ? quay__atomic_file_commit(&file, false)
                             : quay__atomic_file_give_up(&file, status);
  signals_release();
  free(text);
  return status == QUAY_OK ? EXIT_DONE : fail_quay();
}

exit_status matrix_can_draw(const char *path) {
  quay__atomic_file file = QUAY__ATOMIC_FILE_NONE;
  signals_catch();
  const quay_status status = quay__atomic_file_begin(path, 0, &file);
  if (status == QUAY_OK)
    quay__atomic_file_abort(&file);
  signals_release();
  return status == QUAY_OK ? EXIT_DONE : fail_quay();
}

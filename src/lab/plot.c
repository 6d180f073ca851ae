/* SPDX-License-Identifier: MIT */
/*
 * Plots as SVG.  The drawing is 380 units wide, so that its letters can be read when a phone shows it at 320 pixels,
 * and grows with the card that it stands in.
 */
#include "lab/report.h"

#include <math.h>
#include <string.h>

enum {
  WIDTH = 380,
  LINES_HEIGHT = 240,
  BAR_STEP = 40,
  HILL_STEP = 52,
  HILL_HEIGHT = 30,
  LEFT = 50,
  RIGHT = 12,
  TOP = 14,
  TOP_LINES = 26 /* the title of the axis stands above */,
  BOTTOM = 42,
  TICKS_MAX = 24,
  POINTS_IN_TABLE = 24
};

struct axis {
  double from, to; /* of the data */
  double at, size; /* on the drawing; a negative size grows upwards */
  bool log;
  double tick[TICKS_MAX];
  size_t ticks;
};

static double place(const struct axis *axis, double value) {
  double from = axis->from, to = axis->to;
  if (axis->log) {
    from = log10(from);
    to = log10(to);
    value = log10(value > 0 ? value : axis->from);
  }
  double share = to > from ? (value - from) / (to - from) : 0.5;
  return axis->at + axis->size * fmin(1, fmax(0, share));
}

static void tick(struct axis *axis, double value) {
  if (axis->ticks < TICKS_MAX && value >= axis->from * (1 - 1e-9) && value <= axis->to * (1 + 1e-9))
    axis->tick[axis->ticks++] = value;
}

/* Whole decades around the data; with few of them, 2 and 5 as well. */
static void log_axis(struct axis *axis, double low, double high) {
  axis->log = true;
  axis->from = pow(10, floor(log10(low) + 1e-9));
  axis->to = pow(10, ceil(log10(high) - 1e-9));
  if (axis->to <= axis->from) axis->to = axis->from * 10;
  double decades = log10(axis->to / axis->from);
  int each = decades > 7 ? (int)(decades / 5) : 1;
  for (int d = 0; d <= (int)(decades + 0.5); d += each) {
    double at = axis->from * pow(10, d);
    tick(axis, at);
    if (decades > 2.5) continue;
    tick(axis, at * 2);
    tick(axis, at * 5);
  }
}

static void even_axis(struct axis *axis, double low, double high, bool from_zero) {
  if (from_zero && low > 0) low = 0;
  if (high <= low) high = low + 1;
  double rough = (high - low) / 4, power = pow(10, floor(log10(rough))), step = power;
  if (rough > power * 5)
    step = power * 10;
  else if (rough > power * 2)
    step = power * 5;
  else if (rough > power)
    step = power * 2;
  axis->from = floor(low / step + 1e-9) * step;
  axis->to = ceil(high / step - 1e-9) * step;
  for (int i = 0; i < TICKS_MAX && axis->from + i * step <= axis->to + step / 2; i++) {
    double at = axis->from + i * step;
    tick(axis, fabs(at) < step / 1e6 ? 0 : at);
  }
}

/* As short as an axis needs it: 1.5k, 20M, 0.05. */
static void brief(char *to, size_t size, double value) {
  double n = fabs(value);
  if (n >= 1e9)
    snprintf(to, size, "%gG", value / 1e9);
  else if (n >= 1e6)
    snprintf(to, size, "%gM", value / 1e6);
  else if (n >= 1e3)
    snprintf(to, size, "%gk", value / 1e3);
  else
    snprintf(to, size, "%.4g", value);
}

static void figure(char *to, size_t size, double value) {
  struct lab_cell cell = {.number = value};
  dibs__lab_figure(to, size, value == floor(value) ? LAB_COUNT : LAB_RATE, &cell);
}

static void hue(const struct lab_series *series, FILE *out) {
  if (series->mood == LAB_EXPECTED || series->mood == LAB_BAD)
    fputs("wrong", out);
  else
    fprintf(out, "c%u", series->hue % 8);
}

static unsigned dashes(const struct lab_series *series) {
  return series->hue / 3 % 4;
}

static void text_of(const char *text, FILE *out) {
  dibs__lab_escape(out, text ? text : "");
}

static void ranges(const struct lab_plot *plot, double x[2], double y[2]) {
  x[0] = y[0] = (double)INFINITY;
  x[1] = y[1] = -(double)INFINITY;
  for (size_t i = 0; i < plot->count; i++)
    for (size_t n = 0; n < plot->series[i].count; n++) {
      const struct lab_series *s = &plot->series[i];
      x[0] = fmin(x[0], s->x[n]);
      x[1] = fmax(x[1], s->x[n]);
      y[0] = fmin(y[0], s->y[n]);
      y[1] = fmax(y[1], s->y[n]);
    }
}

static void open_svg(const struct lab_plot *plot, size_t nr, int height, FILE *out) {
  fprintf(out, "<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-labelledby=\"t%zu d%zu\">\n", WIDTH, height, nr, nr);
  fprintf(out, "<title id=\"t%zu\">", nr);
  text_of(plot->title, out);
  fprintf(out, "</title>\n<desc id=\"d%zu\">", nr);
  text_of(plot->text, out);
  fputs(" The figures are in the table below.</desc>\n", out);
}

static void draw_x_axis(const struct axis *x, double top, double bottom, const char *title, FILE *out) {
  char label[32];
  for (size_t i = 0; i < x->ticks; i++) {
    double at = place(x, x->tick[i]);
    brief(label, sizeof label, x->tick[i]);
    fprintf(out, "<line class=\"rule\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>", at, at, top, bottom);
    fprintf(out, "<text class=\"soft\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%s</text>\n", at, bottom + 16,
            label);
  }
  fprintf(out, "<text class=\"soft\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">", x->at + x->size / 2, bottom + 33);
  text_of(title, out);
  fputs("</text>\n", out);
}

/* ---- Bars ---- */

static void bars(const struct lab_plot *plot, size_t nr, FILE *out) {
  double most = 0, limit = 0;
  char label[48];
  for (size_t i = 0; i < plot->count; i++) {
    const struct lab_series *s = &plot->series[i];
    if (!s->count) continue;
    most = fmax(most, fmax(s->y[0], s->x[0]));
    limit = fmax(limit, s->x[0]);
  }
  if (most <= 0) most = 1;
  int height = TOP + (int)plot->count * BAR_STEP;
  open_svg(plot, nr, height, out);
  for (size_t i = 0; i < plot->count; i++) {
    const struct lab_series *s = &plot->series[i];
    double top = 6 + (double)i * BAR_STEP, value = s->count ? s->y[0] : 0;
    double width = fmax(2, value / most * (WIDTH - 4));
    figure(label, sizeof label, value);
    fputs("<g class=\"", out);
    hue(s, out);
    if (s->faint) fputs(" faint", out);
    fprintf(out, "\"><text x=\"0\" y=\"%.1f\">", top + 11);
    text_of(s->name, out);
    fprintf(out, "</text><text class=\"strong\" x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%s", WIDTH, top + 11,
            s->count ? label : "-");
    if (*plot->y_title) fputc(' ', out);
    text_of(plot->y_title, out);
    fprintf(out, "</text><rect class=\"bar\" x=\"1\" y=\"%.1f\" width=\"%.1f\" height=\"14\" rx=\"3\"/></g>\n",
            top + 17, width);
  }
  if (limit > 0) {
    double at = 1 + limit / most * (WIDTH - 4);
    for (size_t i = 0; i < plot->count; i++)
      fprintf(out, "<line class=\"limit\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>\n", at, at,
              19 + (double)i * BAR_STEP, 41 + (double)i * BAR_STEP);
  }
  fputs("</svg>\n", out);
}

/* ---- Lines ---- */

static void draw_line(const struct lab_plot *plot, size_t nth, size_t nr, const struct axis *x, const struct axis *y,
                      FILE *out) {
  const struct lab_series *s = &plot->series[nth];
  char label[48], at[48];
  fprintf(out, "<g id=\"p%zu-%zu\" class=\"", nr, nth);
  hue(s, out);
  fprintf(out, "\"><polyline class=\"line d%u\" points=\"", dashes(s));
  for (size_t n = 0; n < s->count; n++) fprintf(out, "%.1f,%.1f ", place(x, s->x[n]), place(y, s->y[n]));
  fputs("\"/>", out);
  if (s->count <= POINTS_IN_TABLE) {
    for (size_t n = 0; n < s->count; n++) {
      figure(label, sizeof label, s->y[n]);
      brief(at, sizeof at, s->x[n]);
      fprintf(out, "<circle class=\"dot\" cx=\"%.1f\" cy=\"%.1f\" r=\"4\"><title>", place(x, s->x[n]),
              place(y, s->y[n]));
      text_of(s->name, out);
      fprintf(out, ", %s: %s</title></circle>", at, label);
    }
  }
  fputs("</g>\n", out);
}

static void lines(const struct lab_plot *plot, size_t nr, FILE *out) {
  double xs[2], ys[2];
  char label[32];
  ranges(plot, xs, ys);
  struct axis x = {.at = LEFT, .size = WIDTH - LEFT - RIGHT};
  struct axis y = {.at = LINES_HEIGHT - BOTTOM, .size = -(LINES_HEIGHT - BOTTOM - TOP_LINES)};
  if (plot->log_x && xs[0] > 0)
    log_axis(&x, xs[0], xs[1]);
  else
    even_axis(&x, xs[0], xs[1], true);
  if (plot->log_y && ys[0] > 0 && ys[1] / ys[0] > 20)
    log_axis(&y, ys[0], ys[1]);
  else
    even_axis(&y, ys[0], ys[1], true);
  open_svg(plot, nr, LINES_HEIGHT, out);
  draw_x_axis(&x, TOP_LINES, LINES_HEIGHT - BOTTOM, plot->x_title, out);
  for (size_t i = 0; i < y.ticks; i++) {
    double at = place(&y, y.tick[i]);
    brief(label, sizeof label, y.tick[i]);
    fprintf(out, "<line class=\"rule\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/>", LEFT, WIDTH - RIGHT, at, at);
    fprintf(out, "<text class=\"soft\" x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n", LEFT - 6, at + 4, label);
  }
  fprintf(out, "<text class=\"soft\" x=\"0\" y=\"9\">");
  text_of(plot->y_title, out);
  fputs("</text>\n", out);
  for (size_t i = 0; i < plot->count; i++) draw_line(plot, i, nr, &x, &y, out);
  fputs("</svg>\n", out);
}

/* ---- Hills ---- */

static void draw_hill(const struct lab_plot *plot, size_t nth, size_t nr, const struct axis *x, FILE *out) {
  const struct lab_series *s = &plot->series[nth];
  double base = TOP + (double)(nth + 1) * HILL_STEP - 4, most = 0;
  char median[32], late[32];
  for (size_t n = 0; n < s->count; n++) most = fmax(most, s->y[n]);
  if (most <= 0) most = 1;
  figure(median, sizeof median, plot->mark[nth][0]);
  figure(late, sizeof late, plot->mark[nth][1]);
  fprintf(out, "<g id=\"p%zu-%zu\" class=\"", nr, nth);
  hue(s, out);
  fprintf(out, "\"><text x=\"0\" y=\"%.1f\">", base - HILL_HEIGHT - 4);
  text_of(s->name, out);
  fprintf(out, "</text><text class=\"soft\" x=\"%d\" y=\"%.1f\" text-anchor=\"end\">median %s, p99 %s ms</text>", WIDTH,
          base - HILL_HEIGHT - 4, median, late);
  fprintf(out, "<path class=\"hill\" d=\"M%.1f %.1f", s->count ? place(x, s->x[0]) : x->at, base);
  for (size_t n = 0; n < s->count; n++)
    fprintf(out, "L%.1f %.1f", place(x, s->x[n]), base - s->y[n] / most * HILL_HEIGHT);
  fprintf(out, "L%.1f %.1fZ\"/>", s->count ? place(x, s->x[s->count - 1]) : x->at, base);
  fprintf(out, "<line class=\"rule base\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>", x->at, x->at + x->size,
          base, base);
  for (size_t m = 0; m < 2; m++) {
    double at = place(x, plot->mark[nth][m]);
    fprintf(out, "<line class=\"mark\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>", at, at,
            base - (m ? HILL_HEIGHT * 0.4 : HILL_HEIGHT), base);
  }
  fputs("</g>\n", out);
}

static void hills(const struct lab_plot *plot, size_t nr, FILE *out) {
  double xs[2], ys[2];
  ranges(plot, xs, ys);
  struct axis x = {.at = 8, .size = WIDTH - 16};
  if (xs[0] > 0)
    log_axis(&x, xs[0], xs[1]);
  else
    even_axis(&x, 0, 1, true);
  double bottom = TOP + (double)plot->count * HILL_STEP;
  open_svg(plot, nr, (int)bottom + BOTTOM, out);
  draw_x_axis(&x, TOP, bottom, plot->x_title, out);
  for (size_t i = 0; i < plot->count; i++) draw_hill(plot, i, nr, &x, out);
  fputs("</svg>\n", out);
}

/* ---- Around it ---- */

static void legend(const struct lab_plot *plot, size_t nr, FILE *out) {
  fputs("<ul class=\"legend\">\n", out);
  for (size_t i = 0; i < plot->count; i++) {
    const struct lab_series *s = &plot->series[i];
    fputs("<li class=\"", out);
    hue(s, out);
    fprintf(out, "\"><button type=\"button\" aria-pressed=\"true\" data-for=\"p%zu-%zu\">", nr, i);
    fprintf(out,
            "<svg viewBox=\"0 0 26 10\" aria-hidden=\"true\"><line class=\"line d%u\" x1=\"1\" x2=\"25\" y1=\"5\" "
            "y2=\"5\"/></svg>",
            dashes(s));
    text_of(s->name, out);
    fputs("</button></li>\n", out);
  }
  fputs("</ul>\n", out);
}

static void head_cell(const char *text, bool number, FILE *out) {
  fprintf(out, "<th scope=\"col\"%s>", number ? " class=\"n\"" : "");
  text_of(text, out);
  fputs("</th>", out);
}

static void table_row(const char *name, double a, double b, bool two, FILE *out) {
  char text[48];
  fputs("<tr><th scope=\"row\">", out);
  text_of(name, out);
  figure(text, sizeof text, a);
  fprintf(out, "</th><td class=\"n\">%s</td>", text);
  figure(text, sizeof text, b);
  if (two) fprintf(out, "<td class=\"n\">%s</td>", text);
  fputs("</tr>\n", out);
}

static void behind(const struct lab_plot *plot, FILE *out) {
  bool two = plot->shape != LAB_BARS;
  fputs(
      "<details><summary>Figures</summary><div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Figures: ",
      out);
  text_of(plot->title, out);
  fputs("\"><table><thead><tr>", out);
  head_cell("", false, out);
  if (plot->shape == LAB_HILLS) {
    head_cell("median, ms", true, out);
    head_cell("p99, ms", true, out);
  } else {
    if (two) head_cell(plot->x_title, true, out);
    head_cell(plot->y_title, true, out);
  }
  fputs("</tr></thead><tbody>\n", out);
  for (size_t i = 0; i < plot->count; i++) {
    const struct lab_series *s = &plot->series[i];
    size_t each = s->count / POINTS_IN_TABLE + 1;
    if (plot->shape == LAB_HILLS)
      table_row(s->name, plot->mark[i][0], plot->mark[i][1], true, out);
    else if (!two && s->count)
      table_row(s->name, s->y[0], 0, false, out);
    else
      for (size_t n = 0; two && n < s->count; n += each) table_row(s->name, s->x[n], s->y[n], true, out);
  }
  fputs("</tbody></table></div></details>\n", out);
}

static bool has_points(const struct lab_plot *plot) {
  for (size_t i = 0; i < plot->count; i++)
    if (plot->series[i].count) return true;
  return false;
}

void dibs__lab_plot_write(const struct lab_plot *plot, size_t nr, FILE *out) {
  if (!has_points(plot)) return;
  fputs("<section class=\"card\">\n<h2>", out);
  text_of(plot->title, out);
  fputs("</h2>\n", out);
  if (plot->text && *plot->text) {
    fputs("<p>", out);
    text_of(plot->text, out);
    fputs("</p>\n", out);
  }
  fputs("<figure>\n", out);
  if (plot->shape == LAB_BARS) bars(plot, nr, out);
  if (plot->shape == LAB_LINES) lines(plot, nr, out);
  if (plot->shape == LAB_HILLS) hills(plot, nr, out);
  fputs("</figure>\n", out);
  if (plot->shape == LAB_LINES) legend(plot, nr, out);
  behind(plot, out);
  fputs("</section>\n", out);
}

/* SPDX-License-Identifier: MIT */
/* The page: the request, whether promises held, tables, plots, timelines, notes. */
#include "base/text.h"
#include "lab/sheet.h"

#include <math.h>
#include <string.h>

enum {
  NARROW = 5, /* columns of a table that fits beside a plot */
  LONG = 22   /* bytes of a fact that gets two columns */
};

static const char *class_of(enum lab_mood mood) {
  static const char *const names[] = {
      [LAB_PLAIN] = "", [LAB_GOOD] = "good", [LAB_EXPECTED] = "expected", [LAB_BAD] = "bad"};
  return names[mood];
}

static void heading(const char *title, const char *text, FILE *out) {
  fputs("<h2>", out);
  dibs__lab_escape(out, title ? title : "");
  fputs("</h2>\n", out);
  if (!text || !*text) return;
  fputs("<p>", out);
  dibs__lab_escape(out, text);
  fputs("</p>\n", out);
}

static void write_cell(const struct lab_column *column, const struct lab_cell *cell, bool first, FILE *out) {
  char figure[256];
  bool number = column->kind != LAB_TEXT;
  const char *mood = class_of(cell->mood);
  const char *tag = first ? "th scope=\"row\"" : "td";
  dibs__lab_figure(figure, sizeof figure, column->kind, cell);
  fprintf(out, "<%s", tag);
  if (number || *mood) fprintf(out, " class=\"%s%s%s\"", number ? "n" : "", number && *mood ? " " : "", mood);
  fputc('>', out);
  dibs__lab_escape(out, cell->none ? "\xe2\x80\x93" : figure);
  fputs(first ? "</th>" : "</td>", out);
}

/* The nth column of a page: the verdict is the second one, so that a phone shows it without scrolling. */
static size_t column_at(const struct lab_table *table, size_t nth) {
  size_t verdict = table->column_count;
  for (size_t i = 1; i < table->column_count; i++)
    if (strcmp(table->columns[i].key, "verdict") == 0) verdict = i;
  if (verdict == table->column_count || nth == 0 || nth > verdict) return nth;
  return nth == 1 ? verdict : nth - 1;
}

static void write_table(const struct lab_table *table, FILE *out) {
  fprintf(out, "<section class=\"card%s\">\n", table->column_count > NARROW ? " wide" : "");
  heading(table->title, table->text, out);
  fputs("<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"", out);
  dibs__lab_escape(out, table->title ? table->title : "");
  fputs("\">\n<table>\n<thead><tr>", out);
  for (size_t i = 0; i < table->column_count; i++) {
    const struct lab_column *column = &table->columns[column_at(table, i)];
    fprintf(out, "<th scope=\"col\"%s>", column->kind == LAB_TEXT ? "" : " class=\"n\"");
    dibs__lab_escape(out, column->head);
    fputs("</th>", out);
  }
  fputs("</tr></thead>\n<tbody>\n", out);
  for (size_t i = 0; i + table->column_count <= table->count; i += table->column_count) {
    fputs("<tr>", out);
    for (size_t c = 0; c < table->column_count; c++) {
      size_t at = column_at(table, c);
      write_cell(&table->columns[at], &table->cells[i + at], c == 0, out);
    }
    fputs("</tr>\n", out);
  }
  fputs("</tbody>\n</table>\n</div>\n</section>\n", out);
}

/* Each step has its own row: a lower row happened later. */
static void write_step(const struct lab_timeline *timeline, size_t nth, FILE *out) {
  const struct lab_step *step = &timeline->steps[nth];
  const char *side = step->side < 0 ? "b" : step->side == 0 ? "l" : "r", *mood = class_of(step->mood);
  fprintf(out, "<li><div class=\"act %s%s%s\" style=\"grid-row:%zu\">", side, *mood ? " " : "", mood, nth + 2);
  if (step->side >= 0) {
    fputs("<span class=\"visually-hidden\">", out);
    dibs__lab_escape(out, timeline->heads[step->side] ? timeline->heads[step->side] : "");
    fputs(": </span>", out);
  }
  if (step->does && *step->does) {
    fputs(step->side < 0 ? "<span>" : "<code>", out);
    dibs__lab_escape(out, step->does);
    fputs(step->side < 0 ? "</span>" : "</code>", out);
  }
  if (step->gets && *step->gets) {
    fputs("<span class=\"gets\">", out);
    dibs__lab_escape(out, step->gets);
    fputs("</span>", out);
  }
  fputs("</div></li>\n", out);
}

static void write_timeline(const struct lab_timeline *timeline, FILE *out) {
  fputs("<section class=\"card wide\">\n", out);
  heading(timeline->title, timeline->text, out);
  fputs("<ol class=\"time\">\n<li aria-hidden=\"true\">", out);
  for (size_t i = 0; i < 2; i++) {
    fputs("<div class=\"who\">", out);
    dibs__lab_escape(out, timeline->heads[i] ? timeline->heads[i] : "");
    fputs("</div>", out);
  }
  fputs("</li>\n", out);
  for (size_t i = 0; i < timeline->count; i++) write_step(timeline, i, out);
  fputs("</ol>\n</section>\n", out);
}

void dibs__lab_page_facts(const struct lab_sheet *sheet, FILE *out) {
  if (!sheet->fact_count) return;
  fputs("<dl class=\"facts\">\n", out);
  for (size_t i = 0; i < sheet->fact_count; i++) {
    fputs(sheet->facts[i].text && strlen(sheet->facts[i].text) > LONG ? "<div class=\"long\"><dt>" : "<div><dt>", out);
    dibs__lab_escape(out, sheet->facts[i].head);
    fputs("</dt><dd>", out);
    dibs__lab_escape(out, sheet->facts[i].text ? sheet->facts[i].text : "");
    fputs("</dd></div>\n", out);
  }
  fputs("</dl>\n", out);
}

static void write_notes(const struct lab_sheet *sheet, FILE *out) {
  if (!sheet->note_count) return;
  fputs("<section>\n<h2>Notes</h2>\n<ul class=\"notes\">\n", out);
  for (size_t i = 0; i < sheet->note_count; i++) {
    fputs("<li>", out);
    dibs__lab_escape(out, sheet->notes[i] ? sheet->notes[i] : "");
    fputs("</li>\n", out);
  }
  fputs("</ul>\n</section>\n", out);
}

static void write_head(const struct lab_sheet *sheet, FILE *out) {
  fprintf(out, "<header>\n<p class=\"kicker\">%s",
          sheet->has_index ? "<a href=\"index.html\">All experiments</a> / dibs lab" : "dibs lab");
  if (sheet->experiment) {
    fputc(' ', out);
    dibs__lab_escape(out, sheet->experiment);
  }
  fputs("</p>\n<h1>", out);
  dibs__lab_escape(out, sheet->title ? sheet->title : "");
  fputs("</h1>\n", out);
  if (sheet->intro && *sheet->intro) {
    fputs("<p class=\"lead\">", out);
    dibs__lab_escape(out, sheet->intro);
    fputs("</p>\n", out);
  }
  if (sheet->failed) {
    fputs("<p class=\"verdict expected\">\xe2\x9a\xa0\xef\xb8\x8e Not run: ", out);
    dibs__lab_escape(out, sheet->failed);
    fputs("</p>\n", out);
  } else
    fprintf(out, "<p class=\"verdict %s\">%s</p>\n",
            sheet->broken        ? "bad"
            : sheet->interrupted ? "expected"
                                 : "good",
            sheet->broken        ? "\xe2\x9c\x95 A promise was broken: see the table."
            : sheet->interrupted ? "\xe2\x9a\xa0\xef\xb8\x8e Ended early: these are the results until then."
                                 : "\xe2\x9c\x93 Every promise held.");
  dibs__lab_page_facts(sheet, out);
  fputs("</header>\n", out);
}

/* The frame of the page: style for light, dark, phones and paper; a script that hides and shows lines. */

void dibs__lab_escape(FILE *out, const char *text) {
  size_t length = strlen(text);
  for (size_t at = 0; at < length;) {
    uint32_t code;
    size_t took = dibs__utf8_next(text + at, length - at, &code);
    bool bad = took == 0 || (code < 0x20 && code != '\n' && code != '\t') || (code >= 0x7f && code < 0xa0) ||
               (code >= 0x202a && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069) || (code & 0xfffe) == 0xfffe;
    if (took == 0) took = 1;
    if (bad)
      fputs("&#xfffd;", out);
    else if (code == '<')
      fputs("&lt;", out);
    else if (code == '>')
      fputs("&gt;", out);
    else if (code == '&')
      fputs("&amp;", out);
    else if (code == '"')
      fputs("&quot;", out);
    else if (code == '\'')
      fputs("&#39;", out);
    else
      fwrite(text + at, 1, took, out);
    at += took;
  }
}

/* Colours differ in lightness, too, and lines in their dashes: nothing depends on the hue alone. */
static const char style[] =
    ":root{color-scheme:light dark;--bg:#fbfbf9;--card:#fff;--ink:#1c2024;--soft:#5a6169;--line:#dcdfe3;"
    "--good:#1a7f4b;--good-bg:#e6f4ec;--exp:#8a5a00;--exp-bg:#fdf3dc;--bad:#b3261e;--bad-bg:#fbe9e7;"
    "--s0:#0b6bcb;--s1:#c2570c;--s2:#0f7f6b;--s3:#8e3fb5;--s4:#7a6a00;--s5:#b0256b;--s6:#4f5b66;--s7:#3f51b5}\n"
    "@media (prefers-color-scheme:dark){:root{--bg:#14171a;--card:#1c2024;--ink:#e8eaed;--soft:#a3abb3;--line:#363c43;"
    "--good:#6fd6a0;--good-bg:#173526;--exp:#f0c468;--exp-bg:#3a2f14;--bad:#ff9a90;--bad-bg:#43201d;"
    "--s0:#6cb4ff;--s1:#ffa061;--s2:#4fd1b8;--s3:#d59bf0;--s4:#d9c545;--s5:#ff8fc0;--s6:#b4bec8;--s7:#a3afff}}\n"
    "*{box-sizing:border-box}\n"
    "body{margin:0;background:var(--bg);color:var(--ink);font:16px/1.55 system-ui,-apple-system,'Segoe UI',Roboto,"
    "'Helvetica Neue',Arial,sans-serif;-webkit-text-size-adjust:100%}\n"
    "main{max-width:1080px;margin:0 auto;padding:1.2rem 1rem 3rem}\n"
    "header p.kicker{margin:0;color:var(--soft);font-size:.85rem;letter-spacing:.04em}\n"
    "h1{font-size:clamp(1.5rem,5vw,2.1rem);line-height:1.2;margin:.15rem 0 .6rem}\n"
    "a{color:var(--s0)}h2{font-size:1.12rem;margin:0 0 .2rem;line-height:1.3}\n"
    ".lead{max-width:44rem;margin:.3rem 0 1rem}\n"
    ".verdict{display:inline-block;margin:.2rem 0 1rem;padding:.35rem .8rem;border-radius:.5rem;font-weight:600}\n"
    ".good{color:var(--good)}.expected{color:var(--exp)}.bad{color:var(--bad)}\n"
    ".verdict.good{background:var(--good-bg)}.verdict.bad{background:var(--bad-bg)}"
    ".verdict.expected{background:var(--exp-bg)}\n"
    "dl.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,10rem),1fr));gap:.6rem 1.2rem;"
    "margin:0 0 1.2rem}\n"
    "dl.facts .long{grid-column:span 2}dl.facts dt{color:var(--soft);font-size:.8rem}dl.facts "
    "dd{margin:0;overflow-wrap:anywhere}\n"
    "@media (max-width:30rem){dl.facts{grid-template-columns:1fr 1fr}}\n"
    ".grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,26rem),1fr));gap:1rem;align-items:start}"
    "\n"
    ".card{background:var(--card);border:1px solid var(--line);border-radius:.75rem;padding:1rem;min-width:0}\n"
    ".card.wide{grid-column:1/-1}.card>p:not(.verdict){margin:.1rem 0 .6rem;color:var(--soft);font-size:.9rem}\n"
    "figure{margin:0}svg{display:block;width:100%;height:auto;overflow:visible}\n"
    ".scroll{overflow-x:auto;-webkit-overflow-scrolling:touch}\n"
    "table{border-collapse:collapse;width:100%;font-size:.88rem;font-variant-numeric:tabular-nums}\n"
    "caption{text-align:left;color:var(--soft);padding:.2rem 0}\n"
    "th,td{padding:.4rem .55rem;border-bottom:1px solid var(--line);text-align:left;white-space:nowrap}\n"
    "thead th{color:var(--soft);font-weight:500;vertical-align:bottom;white-space:normal;line-height:1.2}\n"
    ".n{text-align:right}tbody tr:last-child>*{border-bottom:0}tbody th{font-weight:600;"
    "position:sticky;left:0;background:var(--card);white-space:normal;min-width:6.5rem}\n"
    "td.good,td.expected,td.bad{font-weight:600}\n"
    "td.expected::before{content:'\\26A0\\FE0E\\00a0'}td.bad::before{content:'\\2715\\00a0'}"
    "td.good::before{content:'\\2713\\00a0'}\n"
    "td.n.expected::before,td.n.bad::before{content:''}\n"
    "details{margin-top:.7rem;font-size:.88rem}summary{cursor:pointer;color:var(--soft);padding:.25rem 0}\n"
    ".legend{display:flex;flex-wrap:wrap;gap:.15rem .4rem;margin:.5rem 0 0;padding:0;list-style:none}\n"
    ".legend button,.legend span{display:inline-flex;align-items:center;gap:.4rem;font:inherit;font-size:.85rem;"
    "color:inherit;background:none;border:1px solid transparent;border-radius:.4rem;padding:.2rem .45rem}\n"
    ".legend button{cursor:pointer}.legend button:hover{border-color:var(--line)}"
    ".legend button[aria-pressed=false]{opacity:.45;text-decoration:line-through}\n"
    ".legend svg{width:1.6rem;height:.7rem;flex:none}\n"
    "svg text{font:12px system-ui,-apple-system,'Segoe UI',Roboto,Arial,sans-serif;fill:var(--ink)}"
    "svg text.soft{fill:var(--soft)}svg .rule{stroke:var(--line);stroke-width:1}svg .base{stroke:var(--soft)}\n"
    "svg .mark{stroke:var(--ink);stroke-width:1.5}svg .limit{stroke:var(--ink);stroke-width:1.5;stroke-dasharray:4 3}\n"
    "svg text.strong{font-weight:600}\n"
    ".c0{--c:var(--s0)}.c1{--c:var(--s1)}.c2{--c:var(--s2)}.c3{--c:var(--s3)}.c4{--c:var(--s4)}.c5{--c:var(--s5)}"
    ".c6{--c:var(--s6)}.c7{--c:var(--s7)}.wrong{--c:var(--bad)}\n"
    ".bar{fill:var(--c)}.faint .bar{fill-opacity:.25;stroke:var(--c);stroke-width:1.5}.wrong "
    ".bar{fill:var(--bad-bg);stroke:var(--bad);stroke-width:1.5;stroke-dasharray:4 3}\n"
    ".hill{fill:var(--c);fill-opacity:.28;stroke:var(--c);stroke-width:1.5;stroke-linejoin:round}\n"
    ".wrong .hill{stroke-dasharray:4 3}\n"
    ".line{fill:none;stroke:var(--c);stroke-width:2;stroke-linejoin:round;stroke-linecap:round}"
    ".dot{fill:var(--c);stroke:var(--card);stroke-width:1.5}\n"
    ".d1{stroke-dasharray:7 3}.d2{stroke-dasharray:2 3}.d3{stroke-dasharray:9 3 2 3}.off{display:none}\n"
    "ol.time{list-style:none;margin:.6rem 0 0;padding:0;display:grid;grid-template-columns:1fr 1fr;gap:.4rem .6rem}\n"
    "ol.time li{display:contents}.who{font-weight:600;border-bottom:2px solid var(--line);padding:.2rem .1rem}\n"
    ".act{border:1px solid var(--line);border-left-width:4px;border-radius:.5rem;padding:.45rem .6rem;min-width:0;"
    "overflow-wrap:anywhere;font-size:.9rem}\n"
    ".act.l{grid-column:1}.act.r{grid-column:2}.act.b{grid-column:1/-1;border-left-width:1px;text-align:center;"
    "color:var(--soft)}\n"
    ".act code{display:block;font:.86em/1.45 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}\n"
    ".act .gets{display:block;color:var(--soft)}\n"
    ".act.good{border-left-color:var(--good)}.act.good .gets{color:var(--good)}"
    ".act.expected{border-left-color:var(--exp);background:var(--exp-bg)}.act.expected .gets{color:var(--exp)}"
    ".act.bad{border-left-color:var(--bad);background:var(--bad-bg)}.act.bad .gets{color:var(--bad)}\n"
    ".visually-hidden{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%);white-space:nowrap}\n"
    "ul.notes{padding-left:1.2rem;color:var(--soft);font-size:.9rem;overflow-wrap:anywhere}\n"
    "footer{margin-top:2rem;color:var(--soft);font-size:.82rem}\n"
    ":focus-visible{outline:2px solid var(--s0);outline-offset:2px}\n"
    "@media (prefers-reduced-motion:no-preference){.bar,.hill,.line{transition:opacity .15s}}\n"
    "@media print{body{background:#fff}.card{break-inside:avoid}details>*{display:block}}\n";

/* Without the script everything is visible. */
static const char script[] =
    "document.querySelectorAll('.legend button').forEach(function(b){b.addEventListener('click',function(){"
    "var on=b.getAttribute('aria-pressed')!=='false';b.setAttribute('aria-pressed',on?'false':'true');"
    "var g=document.getElementById(b.dataset.for);if(g)g.classList.toggle('off',on)})});";

void dibs__lab_page_head(const char *title, FILE *out) {
  fputs("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
        "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
        "script-src 'unsafe-inline'\"/>\n"
        "<meta name=\"color-scheme\" content=\"light dark\"/>\n<title>",
        out);
  dibs__lab_escape(out, title ? title : "dibs lab");
  fprintf(out, " - dibs lab</title>\n<style>\n%s</style>\n</head>\n<body>\n<main>\n", style);
}

/* Style, script and frame (page.c). */
void dibs__lab_page_tail(FILE *out) {
  fprintf(out, "</main>\n<script>%s</script>\n</body>\n</html>\n", script);
}

/*
 * Plots as SVG.  The drawing is 380 units wide, so that its letters are readable when a phone shows it at 320 pixels,
 * and grows with its card.
 */

enum {
  WIDTH = 380,
  LINES_HEIGHT = 240,
  BAR_STEP = 40,
  HILL_STEP = 52,
  HILL_HEIGHT = 30,
  LEFT = 50,
  RIGHT = 12,
  TOP = 14,
  TOP_LINES = 26 /* the title of the axis is above */,
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

static double position(const struct axis *axis, double value) {
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

/* As short as on an axis: 1.5k, 20M, 0.05. */
static void format_brief(char *to, size_t size, double value) {
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
    double at = position(x, x->tick[i]);
    format_brief(label, sizeof label, x->tick[i]);
    fprintf(out, "<line class=\"rule\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>", at, at, top, bottom);
    fprintf(out, "<text class=\"soft\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%s</text>\n", at, bottom + 16,
            label);
  }
  fprintf(out, "<text class=\"soft\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">", x->at + x->size / 2, bottom + 33);
  text_of(title, out);
  fputs("</text>\n", out);
}

/* ---- Bars ---- */

static void write_bars(const struct lab_plot *plot, size_t nr, FILE *out) {
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
  for (size_t n = 0; n < s->count; n++) fprintf(out, "%.1f,%.1f ", position(x, s->x[n]), position(y, s->y[n]));
  fputs("\"/>", out);
  if (s->count <= POINTS_IN_TABLE) {
    for (size_t n = 0; n < s->count; n++) {
      figure(label, sizeof label, s->y[n]);
      format_brief(at, sizeof at, s->x[n]);
      fprintf(out, "<circle class=\"dot\" cx=\"%.1f\" cy=\"%.1f\" r=\"4\"><title>", position(x, s->x[n]),
              position(y, s->y[n]));
      text_of(s->name, out);
      fprintf(out, ", %s: %s</title></circle>", at, label);
    }
  }
  fputs("</g>\n", out);
}

static void write_lines(const struct lab_plot *plot, size_t nr, FILE *out) {
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
    double at = position(&y, y.tick[i]);
    format_brief(label, sizeof label, y.tick[i]);
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
  fprintf(out, "<path class=\"hill\" d=\"M%.1f %.1f", s->count ? position(x, s->x[0]) : x->at, base);
  for (size_t n = 0; n < s->count; n++)
    fprintf(out, "L%.1f %.1f", position(x, s->x[n]), base - s->y[n] / most * HILL_HEIGHT);
  fprintf(out, "L%.1f %.1fZ\"/>", s->count ? position(x, s->x[s->count - 1]) : x->at, base);
  fprintf(out, "<line class=\"rule base\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>", x->at, x->at + x->size,
          base, base);
  for (size_t m = 0; m < 2; m++) {
    double at = position(x, plot->mark[nth][m]);
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

static void write_legend(const struct lab_plot *plot, size_t nr, FILE *out) {
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

/* A figure with its SVG, its legend and its table (page.c); `nr` differs for each of a page. */
static void lab_plot_write(const struct lab_plot *plot, size_t nr, FILE *out) {
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
  if (plot->shape == LAB_BARS) write_bars(plot, nr, out);
  if (plot->shape == LAB_LINES) write_lines(plot, nr, out);
  if (plot->shape == LAB_HILLS) hills(plot, nr, out);
  fputs("</figure>\n", out);
  if (plot->shape == LAB_LINES) write_legend(plot, nr, out);
  behind(plot, out);
  fputs("</section>\n", out);
}

/* ---- The page ---- */

void dibs__lab_report(const struct lab_sheet *sheet, FILE *out) {
  dibs__lab_page_head(sheet->title, out);
  write_head(sheet, out);
  fputs("<div class=\"grid\">\n", out);
  for (size_t i = 0; i < sheet->part_count; i++) {
    const struct lab_part *part = sheet->parts[i];
    if (part->kind == LAB_PART_TABLE)
      write_table(&part->as.table, out);
    else if (part->kind == LAB_PART_PLOT)
      lab_plot_write(&part->as.plot, i, out);
    else
      write_timeline(&part->as.timeline, out);
  }
  fputs("</div>\n", out);
  write_notes(sheet, out);
  fputs("<footer><p>This page loads nothing from elsewhere; each plot has its figures in a table.</p></footer>\n", out);
  dibs__lab_page_tail(out);
}

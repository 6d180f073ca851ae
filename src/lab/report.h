/* SPDX-License-Identifier: MIT */
#ifndef DIBS_LAB_REPORT_H
#define DIBS_LAB_REPORT_H
/* A sheet as one self-contained page: nothing is fetched, plots are SVG, and behind each stands a table. */
#include "lab/sheet.h"

#include <stdio.h>

/* ferror(out) tells whether it was written. */
void dibs__lab_report(const struct lab_sheet *sheet, FILE *out);

/* ---- Within the writer ---- */

/* Text in HTML or an attribute: escaped, and what is no UTF-8 or a control character is replaced. */
void dibs__lab_escape(FILE *out, const char *text);
/* Style, script and what stands around (page.c). */
void dibs__lab_page_head(const struct lab_sheet *sheet, FILE *out);
void dibs__lab_page_tail(FILE *out);
/* A figure with its SVG, its legend and its table (plot.c); `nr` differs for each of a page. */
void dibs__lab_plot_write(const struct lab_plot *plot, size_t nr, FILE *out);

#endif

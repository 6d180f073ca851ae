/* SPDX-License-Identifier: MIT */
/* The frame of the page: style for light, dark, phones and paper; a script that hides and shows lines. */
#include "lab/report.h"

#include "base/text.h"

#include <string.h>

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

/* Colours differ in lightness too, and lines in their dashes: nothing is told by hue alone. */
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
    "h2{font-size:1.12rem;margin:0 0 .2rem;line-height:1.3}\n"
    ".lead{max-width:44rem;margin:.3rem 0 1rem}\n"
    ".verdict{display:inline-block;margin:.2rem 0 1rem;padding:.35rem .8rem;border-radius:.5rem;font-weight:600}\n"
    ".good{color:var(--good)}.expected{color:var(--exp)}.bad{color:var(--bad)}\n"
    ".verdict.good{background:var(--good-bg)}.verdict.bad{background:var(--bad-bg)}"
    ".verdict.expected{background:var(--exp-bg)}\n"
    "dl.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,10rem),1fr));gap:.6rem 1.2rem;"
    "margin:0 0 1.2rem}\n"
    "dl.facts div:first-child{grid-column:span 2}dl.facts dt{color:var(--soft);font-size:.8rem}dl.facts "
    "dd{margin:0;overflow-wrap:anywhere}\n"
    ".grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,26rem),1fr));gap:1rem;align-items:start}"
    "\n"
    ".card{background:var(--card);border:1px solid var(--line);border-radius:.75rem;padding:1rem;min-width:0}\n"
    ".card.wide{grid-column:1/-1}.card>p{margin:.1rem 0 .6rem;color:var(--soft);font-size:.9rem}\n"
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

/* Without it everything is shown. */
static const char script[] =
    "document.querySelectorAll('.legend button').forEach(function(b){b.addEventListener('click',function(){"
    "var on=b.getAttribute('aria-pressed')!=='false';b.setAttribute('aria-pressed',on?'false':'true');"
    "var g=document.getElementById(b.dataset.for);if(g)g.classList.toggle('off',on)})});";

void dibs__lab_page_head(const struct lab_sheet *sheet, FILE *out) {
  fputs("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
        "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n"
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
        "script-src 'unsafe-inline'\"/>\n"
        "<meta name=\"color-scheme\" content=\"light dark\"/>\n<title>",
        out);
  dibs__lab_escape(out, sheet->title ? sheet->title : "dibs lab");
  fprintf(out, " - dibs lab</title>\n<style>\n%s</style>\n</head>\n<body>\n<main>\n", style);
}

void dibs__lab_page_tail(FILE *out) {
  fprintf(out, "</main>\n<script>%s</script>\n</body>\n</html>\n", script);
}

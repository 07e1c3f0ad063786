"""The style sheet of the report page. Colors come from `palette`."""

from __future__ import annotations

CSS = """
*{box-sizing:border-box}
[hidden]{display:none!important}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--page);color:var(--text);
  font:15px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
main,header.top,footer{max-width:1180px;margin:0 auto;padding:0 24px}
header.top{padding-top:40px}
h1{margin:0;font-size:30px;line-height:1.2;letter-spacing:-.02em}
h2{margin:0 0 4px;font-size:20px;letter-spacing:-.01em}
h3{margin:0 0 8px;font-size:14.5px;font-weight:600}
p{margin:0}
.lead{margin-top:8px;font-size:17px}
.note,.how,.facts,footer{color:var(--muted);font-size:13.5px}
.facts{margin-top:10px}
.facts p+p{margin-top:2px}
.how{max-width:76ch;margin-bottom:14px}
section{background:var(--surface);border:1px solid var(--line);border-radius:12px;
  padding:22px 24px;margin:20px 0}
.finding{margin:2px 0 12px}
.block+.block{margin-top:26px}
.scroll{overflow-x:auto}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th{font-weight:600}
.comparison,.workers{width:100%;font-size:14px}
.comparison th,.comparison td,.workers th,.workers td{padding:6px 10px;text-align:right;
  white-space:nowrap;border-bottom:1px solid var(--grid)}
.comparison thead th,.workers thead th{color:var(--muted);font-size:12.5px;line-height:1.35;
  vertical-align:bottom;border-bottom-color:var(--line)}
.comparison th:first-child,.workers th:first-child{text-align:left;padding-left:0;position:sticky;
  left:0;background:var(--surface)}
tbody tr:last-child>*{border-bottom:0}
.comparison td.best{font-weight:700}
.comparison td.best::before{content:"";display:inline-block;width:6px;height:6px;margin-right:6px;
  border-radius:50%;background:currentColor;vertical-align:2px}
.swatch{display:inline-block;width:11px;height:11px;margin-right:8px;border-radius:3px;
  border:1px solid var(--line);  background:var(--swatch)}
.controls{position:sticky;top:0;z-index:5;background:var(--page);
  border-bottom:1px solid var(--line)}
.controls>div{max-width:1180px;margin:0 auto;padding:10px 24px;display:flex;flex-wrap:wrap;gap:6px}
.controls label,.toggle{display:inline-flex;align-items:center;padding:3px 11px 3px 9px;
  font-size:13.5px;border:1px solid var(--line);border-radius:999px;background:var(--surface);
  cursor:pointer;user-select:none}
.controls input,.toggle input{position:absolute;opacity:0;pointer-events:none}
.controls label:has(:focus-visible),.toggle:has(:focus-visible),select:focus-visible{
  outline:2px solid var(--accent);outline-offset:1px}
.controls label:has(input:not(:checked)){color:var(--muted);background:transparent;
  text-decoration:line-through}
.controls label:has(input:not(:checked)) .swatch{opacity:.3}
.toggle{margin:0 0 12px}
.toggle::before{content:"";width:22px;margin-right:8px;border-top:2px dotted currentColor}
.toggle:has(input:not(:checked)){color:var(--muted)}
.toggle .state::after{content:"hidden"}
.toggle:has(:checked) .state::after{content:"shown"}
.panels{display:grid;gap:20px 28px;
  grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr))}
.panels>*{min-width:0}
.figure{min-height:120px}
.legend{display:flex;flex-wrap:wrap;gap:4px 18px;margin-bottom:12px;font-size:13px;
  color:var(--muted)}
select{font:inherit;padding:6px 10px;margin:0 0 14px;max-width:100%;color:var(--text);
  background:var(--surface);border:1px solid var(--line);border-radius:8px}
.figure svg{display:block;font-size:12.5px;touch-action:pan-y}
.figure text{fill:var(--text)}
.figure .tick{fill:var(--muted)}
.figure .inside{pointer-events:none}
.figure path.grid{stroke:var(--grid)}
.figure path.axis{stroke:var(--muted)}
.figure path.target{stroke:var(--muted);stroke-dasharray:5 4}
.figure .band{fill:var(--accent);fill-opacity:.18}
.tip{position:fixed;z-index:9;max-width:min(320px,90vw);padding:6px 10px;font-size:12.5px;
  background:var(--surface);border:1px solid var(--line);border-radius:8px;pointer-events:none;
  overflow-wrap:anywhere}
.matrix{font-size:12.5px}
.matrix th,.matrix td{padding:0 4px;min-width:40px;height:27px;text-align:center;
  border:2px solid var(--surface);border-radius:6px}
.matrix th{color:var(--muted);font-weight:500}
.matrix tbody td{background:color-mix(in srgb,var(--wait) calc(var(--share,0)*85%),var(--grid))}
.matrix tbody td.self{background:transparent}
.matrix tbody td.full{color:#1B2430}
.matrix{margin-bottom:8px}
[data-run]>.how{margin-top:6px}
[data-run]>h3{margin-top:18px}
.matrix .corner{color:var(--muted);text-align:left;white-space:nowrap}
.workers th,.workers td{padding:4px 8px}
.workers tr>:last-child{padding-right:0}
.details td,.details th{text-align:left;vertical-align:top;padding:5px 14px 5px 0;font-size:13.5px;
  border-bottom:1px solid var(--grid)}
.details th{white-space:nowrap}
.details code{font-size:12.5px;overflow-wrap:anywhere}
summary{cursor:pointer;font-weight:600}
details[open] summary{margin-bottom:10px}
footer{padding-bottom:40px}
noscript p{padding:12px 24px}
@media (max-width:640px){
  main,header.top,footer,.controls>div{padding-left:14px;padding-right:14px}
  header.top{padding-top:24px}
  h1{font-size:25px}
  section{padding:16px 14px;border-radius:10px}
  .controls{position:static}
  .matrix th,.matrix td{min-width:31px;padding:0 2px;font-size:11.5px}
  .stacked,.stacked tbody{display:block}
  .stacked thead{display:none}
  .stacked tr{display:block;padding:8px 0;border-bottom:1px solid var(--line)}
  .stacked tbody th{display:block;border:0;padding:0 0 4px;position:static;white-space:normal}
  .stacked tbody td{display:flex;justify-content:space-between;gap:14px;border:0;padding:1px 0;
    text-align:right;white-space:normal}
  .stacked tbody td::after{content:attr(data-heading);order:-1;color:var(--muted);text-align:left}
  .stacked td.best::before{display:none}
}
@media print{.controls{display:none}section{break-inside:avoid}}
"""
"""Plain CSS, put inline so that the page is one file."""

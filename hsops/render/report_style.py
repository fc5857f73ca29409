"""How a report looks, on a light and on a dark screen."""

from __future__ import annotations

STYLE = """
:root{--bg:#fbfbfa;--fg:#1c1d20;--dim:#62656d;--line:#dcdde1;--card:#fff;--fill:#3b6fb6;
--arguments:#9aa0ab;--distributed:#7a5fb5;--weights:#2f7fb8;--kv-cache:#1f9a94;--graphs:#b5822a;--http:#6f9a3c;
--warm-up:#c26a8f;--ready:#3f9a58;--silent:#c0392b;--ok:#2e7d4f;--wait:#8a6a10;--hung:#b3261e;--down:#b3261e;
--unknown:#62656d}
@media (prefers-color-scheme:dark){:root{--bg:#17181b;--fg:#e6e7ea;--dim:#9da1aa;--line:#34363c;--card:#1f2125;
--fill:#6c9fe0;--arguments:#7d828c;--distributed:#a48ce0;--weights:#5aa9e0;--kv-cache:#4fc4bd;--graphs:#d8a953;
--http:#9cc568;--warm-up:#e395b6;--ready:#69c184;--silent:#e8695c;--ok:#69c184;--wait:#d8b453;--hung:#f0867b;
--down:#f0867b;--unknown:#9da1aa}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1080px;padding:24px;background:var(--bg);color:var(--fg);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
header{border-left:6px solid var(--unknown);padding:2px 0 2px 18px;margin-bottom:26px}
header.ok{border-color:var(--ok)}header.wait{border-color:var(--wait)}header.hung,header.down{border-color:var(--hung)}
h1{font-size:25px;line-height:1.25;margin:2px 0;overflow-wrap:anywhere}
h1 b{color:var(--unknown)}.ok h1 b{color:var(--ok)}.wait h1 b{color:var(--wait)}
.hung h1 b,.down h1 b{color:var(--hung)}
header p{margin:4px 0}.where,.sure,footer,.note,.tick{color:var(--dim)}.where,.sure{font-size:14px}
dl{display:grid;grid-template-columns:max-content 1fr;gap:2px 14px;margin:12px 0 0}
dt{color:var(--dim)}dd{margin:0;overflow-wrap:anywhere}
section{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:12px 18px 16px;margin:14px 0}
h2{font-size:15px;margin:0 0 10px}
svg{display:block;width:100%;height:auto;font-size:12px}svg text{fill:var(--fg)}svg .tick{fill:var(--dim);
text-anchor:middle}
.grid{stroke:var(--line)}
.s-arguments,.k-arguments{fill:var(--arguments);background:var(--arguments)}
.s-distributed,.k-distributed{fill:var(--distributed);background:var(--distributed)}
.s-weights,.k-weights{fill:var(--weights);background:var(--weights)}
.s-kv-cache,.k-kv-cache{fill:var(--kv-cache);background:var(--kv-cache)}
.s-graphs,.k-graphs{fill:var(--graphs);background:var(--graphs)}
.s-http,.k-http{fill:var(--http);background:var(--http)}
.s-warm-up,.k-warm-up{fill:var(--warm-up);background:var(--warm-up)}
.s-ready,.k-ready{fill:var(--ready);background:var(--ready)}
.s-silent{fill:var(--silent);fill-opacity:.28;stroke:var(--silent);stroke-dasharray:4 3}
.k-silent{background:none;border:1px dashed var(--silent)}
.legend{display:flex;flex-wrap:wrap;gap:4px 16px;margin:10px 0 0;font-size:13px}
.legend i{display:inline-block;width:11px;height:11px;border-radius:2px;margin-right:6px;vertical-align:-1px}
.bars{display:grid;gap:5px}
.bar{display:grid;grid-template-columns:110px minmax(60px,220px) 76px 1fr;gap:12px;align-items:center;font-size:14px}
.track{background:var(--line);border-radius:3px;height:11px;overflow:hidden}
.fill{display:block;height:100%;background:var(--fill)}
.figure{text-align:right;font-variant-numeric:tabular-nums}.note{font-size:13px;overflow-wrap:anywhere}
p.note{margin:10px 0 0}
.tree,.tree ul{list-style:none;margin:0;padding-left:18px;border-left:1px solid var(--line)}
.tree{padding-left:0;border:0}.tree li{margin:3px 0;overflow-wrap:anywhere}
code,pre{font:13px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
details{color:var(--dim);font-size:13px}summary{cursor:pointer}
table{border-collapse:collapse;width:100%;font-size:14px}
th{text-align:left;font-weight:500;color:var(--dim);vertical-align:top;padding:3px 18px 3px 0;white-space:nowrap}
td{padding:3px 0;overflow-wrap:anywhere}
pre{margin:0;white-space:pre-wrap;overflow-wrap:anywhere}
footer{font-size:13px;margin-top:18px}
@media (max-width:640px){body{padding:14px}.bar{grid-template-columns:80px 1fr 62px}.bar .note{grid-column:1/-1}}
"""

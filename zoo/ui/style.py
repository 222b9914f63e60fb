"""How the page looks; fonts are the system's own, nothing is fetched."""

from __future__ import annotations

import gradio as gr

FONTS = ["ui-sans-serif", "system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif"]
MONO = ["ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace"]

CSS = """
.gradio-container { width: 100% !important; max-width: 1320px !important; margin: 0 auto !important; }
.gradio-container main { width: 100%; }
footer { display: none !important; }
.zoo-title { font-weight: 600; margin: .4rem 0 -.8rem; }
.zoo-head h1 { font-size: 1.35rem; margin: 0; letter-spacing: -.01em; }
.zoo-head p { margin: 0; opacity: .65; font-size: .85rem; }
.zoo-load { display: flex; flex-wrap: wrap; gap: .4rem 1.2rem; justify-content: flex-end; }
.zoo-meter { min-width: 150px; font-size: .75rem; display: grid; grid-template-columns: 1fr auto; gap: 0 .6rem; }
.zoo-meter b { font-variant-numeric: tabular-nums; }
.zoo-meter > div { grid-column: 1 / 3; height: 5px; border-radius: 3px; background: var(--border-color-primary); }
.zoo-meter i { display: block; height: 5px; border-radius: 3px; background: #0d9488; }
.zoo-card { background: var(--block-background-fill); border: 1px solid var(--border-color-primary);
  border-radius: 10px; padding: .6rem; margin: 0; }
.zoo-empty { border: 1px dashed var(--border-color-primary); border-radius: 10px; padding: 2.2rem 1rem;
  text-align: center; opacity: .6; font-size: .9rem; }
.zoo-chart { width: 100%; height: auto; display: block; }
.zoo-chart text { font-size: 12px; fill: var(--body-text-color-subdued); }
.zoo-chart .grid { stroke: var(--border-color-primary); stroke-width: 1; }
.zoo-chart polyline { fill: none; stroke-width: 2; stroke-linejoin: round; }
.zoo-chart circle { fill-opacity: 0; }
.zoo-chart circle:hover { fill-opacity: 1; }
.zoo-legend { display: flex; flex-wrap: wrap; gap: .2rem 1.1rem; font-size: .8rem; padding: .3rem .4rem 0; }
.zoo-legend i { display: inline-block; width: 10px; height: 10px; border-radius: 3px; margin-right: .4rem; }
.zoo-status { display: flex; flex-wrap: wrap; align-items: center; gap: .3rem 1.1rem; font-size: .9rem; }
.zoo-status em { font-style: normal; font-weight: 600; color: #fff; border-radius: 999px; padding: .15rem .8rem; }
.zoo-status em.good { background: #0d9488; } .zoo-status em.busy { background: #d97706; }
.zoo-status em.bad { background: #c92a2a; } .zoo-status em.calm { background: #64748b; }
.zoo-status span { opacity: .8; }
.zoo-media { display: grid; align-items: start; grid-template-columns: repeat(auto-fill, minmax(260px, 1fr));
  gap: .8rem; }
.zoo-media audio, .zoo-media img { width: 100%; display: block; border-radius: 6px; }
.zoo-media figcaption { font-size: .8rem; opacity: .75; padding: .4rem 0 0; overflow-wrap: anywhere; }
.zoo-links { display: flex; flex-wrap: wrap; gap: .5rem; padding-top: .8rem; }
.zoo-links a { border: 1px solid var(--border-color-primary); border-radius: 8px; padding: .35rem .8rem;
  font-size: .85rem; text-decoration: none; }
pre.zoo-log { display: flex; flex-direction: column-reverse; max-height: 340px; overflow: auto; margin: 0;
  font: 12px/1.5 ui-monospace, Menlo, Consolas, monospace; white-space: pre-wrap; overflow-wrap: anywhere;
  background: #11181f; color: #d7e0e8; border-radius: 10px; padding: .8rem 1rem; }
pre.zoo-log span { color: inherit; }
pre.zoo-log.tall { max-height: 70vh; display: block; }
.zoo-grid > .form { display: grid !important; grid-template-columns: repeat(auto-fill, minmax(215px, 1fr));
  gap: .2rem; align-items: end; border: 0; background: transparent; }
.zoo-button { align-self: center; max-width: 150px; }
.zoo-said + * { margin-top: .8rem; }
.zoo-said { border-radius: 10px; padding: .6rem .9rem; font-size: .9rem; overflow-wrap: anywhere; }
.zoo-said.good { background: #0d948822; } .zoo-said.bad { background: #c92a2a22; }
.zoo-said.calm { background: #64748b18; }
.zoo-said.busy { background: #d9770622; }
"""


def theme() -> gr.themes.Base:
    """Quiet greys with one colour."""
    plain = gr.themes.Default(
        primary_hue="teal", secondary_hue="teal", neutral_hue="slate", font=FONTS, font_mono=MONO, radius_size="md"
    )
    return plain.set(
        button_primary_background_fill="*primary_600",
        button_primary_background_fill_hover="*primary_700",
        button_primary_text_color="white",
        button_large_text_size="*text_md",
        block_title_text_size="*text_sm",
        block_title_text_color="*neutral_500",
        block_label_text_size="*text_sm",
    )

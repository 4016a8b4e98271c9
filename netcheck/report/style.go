package report

// style has the colours for light and dark. Those of the shades are one hue each, and go from near the background to
// far from it: the slower, the more it stands out. Kinds have a sign, too, for those who see no colours.
const style = `
  text { font: 13px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; fill: #1f2328; }
  .head { font-size: 15px; font-weight: bold; }
  .dim { fill: #59636e; }
  .warn { fill: #9a6700; }
  .fail { fill: #c62828; }
  .ground { fill: #fcfcfb; }
  .none { fill: #ecebe8; }
  .dot { fill: #8c959f; }
  .s0 { fill: #c3dbf8; } .s1 { fill: #7fb1ef; } .s2 { fill: #2f7bd3; } .s3 { fill: #12427f; }
  .f0, .f1 { fill: #0b1f3a; } .f2, .f3 { fill: #ffffff; }
  .bad { fill: #d03b3b; } .fbad { fill: #ffffff; font-weight: bold; }
  .hurt { fill: #f3c1bd; } .fhurt { fill: #8f1d1d; font-weight: bold; }
  .odd { fill: #f2b01e; } .fodd { fill: #33260a; font-weight: bold; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6e6e3; }
    .dim { fill: #a3a8ae; }
    .warn { fill: #f2b01e; }
    .fail { fill: #ff7b72; }
    .ground { fill: #1a1a19; }
    .none { fill: #2b2b29; }
    .dot { fill: #7d8590; }
    .s0 { fill: #173f73; } .s1 { fill: #2766b4; } .s2 { fill: #6aa5ec; } .s3 { fill: #d3e5fb; }
    .f0, .f1 { fill: #ffffff; } .f2, .f3 { fill: #0b1f3a; }
    .hurt { fill: #5c2424; } .fhurt { fill: #ffb3ad; }
  }
`

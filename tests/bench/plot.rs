//! Line plots as SVG.

use std::path::Path;

use plotters::prelude::*;

pub struct Line {
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

/// How numbers lie on an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// From 0 on.
    Linear,
    /// By their powers of ten.
    Decades,
}

impl Scale {
    fn place(self, value: f64) -> f64 {
        if self == Self::Decades { value.log10() } else { value }
    }

    /// What stands beside a place.
    fn label(self, place: f64) -> String {
        let value = if self == Self::Decades { 10f64.powf(place) } else { place };
        match value {
            v if v >= 1e6 => format!("{}M", (v / 1e5).round() / 10.0),
            v if v >= 1e4 => format!("{}k", (v / 100.0).round() / 10.0),
            v if v >= 100.0 => format!("{v:.0}"),
            v => format!("{}", (v * 1000.0).round() / 1000.0),
        }
    }

    /// The places of the first and the last of these values, with room behind.
    fn ends(self, values: impl Iterator<Item = f64>) -> std::ops::Range<f64> {
        let (min, max) = values.fold((f64::MAX, f64::MIN), |(a, b), v| (a.min(v), b.max(v)));
        match self {
            Self::Linear => 0.0..max * 1.2,
            Self::Decades => self.place(min).floor()..(self.place(max) + 0.05).ceil(),
        }
    }
}

pub struct Plot {
    pub title: &'static str,
    pub x: &'static str,
    pub y: &'static str,
    pub scales: (Scale, Scale),
    pub lines: Vec<Line>,
}

impl Plot {
    pub fn write(&self, path: &Path) {
        let (across, up) = self.scales;
        let all = || self.lines.iter().flat_map(|l| &l.points);
        let area = SVGBackend::new(path, (720, 420)).into_drawing_area();
        area.fill(&WHITE).unwrap();
        let mut chart = ChartBuilder::on(&area)
            .caption(self.title, ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(44)
            .y_label_area_size(64)
            .build_cartesian_2d(across.ends(all().map(|p| p.0)), up.ends(all().map(|p| p.1)))
            .unwrap();
        let mesh = (&|v: &f64| across.label(*v), &|v: &f64| up.label(*v));
        chart
            .configure_mesh()
            .x_desc(self.x)
            .y_desc(self.y)
            .x_labels(8)
            .y_labels(8)
            .x_label_formatter(mesh.0)
            .y_label_formatter(mesh.1)
            .draw()
            .unwrap();
        for (n, line) in self.lines.iter().enumerate() {
            let color = Palette99::pick(n).to_rgba();
            let places = line.points.iter().map(|(x, y)| (across.place(*x), up.place(*y)));
            let series = LineSeries::new(places, color.stroke_width(2));
            let drawn = chart.draw_series(series.point_size(3)).unwrap();
            let key = move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color);
            drawn.label(&line.name).legend(key);
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE)
            .border_style(BLACK)
            .draw()
            .unwrap();
        area.present().unwrap();
    }
}

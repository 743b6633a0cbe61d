//! Line plots as SVG, with a logarithmic abscissa.

use std::path::Path;

use plotters::prelude::*;

pub struct Line {
    pub name: &'static str,
    pub points: Vec<(f64, f64)>,
}

/// A plot whose ordinate begins at 0.
pub struct Plot {
    pub title: &'static str,
    pub x: &'static str,
    pub y: &'static str,
    pub lines: Vec<Line>,
}

impl Plot {
    pub fn write(&self, path: &Path) {
        let all = || self.lines.iter().flat_map(|l| &l.points);
        let (min, max) = all().fold((f64::MAX, f64::MIN), |(a, b), (x, _)| (a.min(*x), b.max(*x)));
        let top = all().fold(0.0, |top: f64, (_, y)| top.max(*y)) * 1.2;
        let area = SVGBackend::new(path, (720, 420)).into_drawing_area();
        area.fill(&WHITE).unwrap();
        let mut chart = ChartBuilder::on(&area)
            .caption(self.title, ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(44)
            .y_label_area_size(64)
            .build_cartesian_2d((min..max).log_scale(), 0.0..top)
            .unwrap();
        chart.configure_mesh().x_desc(self.x).y_desc(self.y).draw().unwrap();
        for (n, line) in self.lines.iter().enumerate() {
            let color = Palette99::pick(n).to_rgba();
            let series = LineSeries::new(line.points.iter().copied(), color.stroke_width(2));
            let drawn = chart.draw_series(series.point_size(3)).unwrap();
            let key = move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color);
            drawn.label(line.name).legend(key);
        }
        chart.configure_series_labels().background_style(WHITE).border_style(BLACK).draw().unwrap();
        area.present().unwrap();
    }
}

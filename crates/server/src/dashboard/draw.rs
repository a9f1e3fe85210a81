//! Small drawings: sizes in attributes, colours from classes, never a style of their own.

use maud::{Markup, html};

use crate::sampler::Window;

/// Points of a small line.
const POINTS: usize = 60;

/// A shape of the sheet that every page begins with.
pub(super) fn icon(name: &str, class: &str) -> Markup {
    html! { svg class={ "g " (class) } aria-hidden="true" { use href={ "#i-" (name) } {} } }
}

/// A small line of what happened lately; `what` tells those who cannot see it.
pub(super) fn line(values: &[f64], class: &str, what: &str) -> Markup {
    let means = means(values, POINTS);
    // Few values stand at the right; many fill the width.
    let full = if values.len() < POINTS { POINTS } else { means.len() };
    let (area, line) = path(&means, 92.0, 24.0, None, full);
    html! {
        svg class={ "sp " (class) } viewBox="0 0 92 24" preserveAspectRatio="none" role="img" aria-label=(what) {
            path class="a" d=(area) {}
            path class="l" d=(line) {}
        }
    }
}

/// Arrived and delivered over the whole ring, with the times shaded in which a gate was not open.
pub(super) fn chart(
    arrived: &[f64],
    delivered: &[f64],
    away: &[bool],
    window: Window,
    what: &str,
) -> Markup {
    let points_max = window.points_max();
    let marks = match window {
        Window::Minutes => [15, 12, 9, 6, 3].map(|minutes| format!("−{minutes} min")),
        Window::Hours => ["6", "4.8", "3.6", "2.4", "1.2"].map(|hours| format!("−{hours} h")),
    };
    let smooth = |values: &[f64]| means(values, values.len().div_ceil(5).max(1));
    let (arrived_s, delivered_s) = (smooth(arrived), smooth(delivered));
    let top = nice(arrived_s.iter().chain(&delivered_s).copied().fold(1.0, f64::max));
    let (_, arrived_line) = path(&arrived_s, 900.0, 220.0, Some(top), points_max / 5);
    let (area, delivered_line) = path(&delivered_s, 900.0, 220.0, Some(top), points_max / 5);
    let shades = shades(away, points_max);
    html! {
        div class="plot" {
            div class="ys" aria-hidden="true" {
                @for part in [4.0, 3.0, 2.0, 1.0, 0.0] { span { (super::text::rate(Some(top * part / 4.0))) } }
            }
            svg class="chart big" viewBox="0 0 900 220" preserveAspectRatio="none" role="img" aria-label=(what) {
                @for (from, to) in shades {
                    rect class="shade" x=(format!("{from:.1}")) y="0" width=(format!("{:.1}", to - from)) height="220" {}
                }
                @for y in [0, 55, 110, 165] { line class="grid" x1="0" x2="900" y1=(y) y2=(y) {} }
                path class="outa" d=(area) {}
                path class="in" d=(arrived_line) {}
                path class="out" d=(delivered_line) {}
            }
            div class="xs" aria-hidden="true" {
                @for mark in marks { span { (mark) } }
                span { "now" }
            }
        }
    }
}

/// A share of the whole as a bar.
pub(super) fn bar(parts: &[(f64, &str)]) -> Markup {
    let mut from = 0.0;
    let mut placed = Vec::new();
    for (share, class) in parts {
        placed.push((from, share.clamp(0.0, 100.0), *class));
        from += share;
    }
    html! {
        svg class="mt" viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true" {
            rect class="bg" width="100" height="6" {}
            @for (from, share, class) in placed {
                rect class={ "fg " (class) } x=(format!("{from:.2}")) width=(format!("{share:.2}")) height="6" {}
            }
        }
    }
}

/// At most so many values, each the mean of as many.
fn means(values: &[f64], most: usize) -> Vec<f64> {
    let of = values.len().div_ceil(most.max(1)).max(1);
    // From the newest on, so that what was drawn stays where it was.
    let mut means: Vec<f64> = values
        .rchunks(of)
        .map(|chunk| chunk.iter().sum::<f64>() / chunk.len().max(1) as f64)
        .collect();
    means.reverse();
    means
}

/// The area and the line of values that end at the right edge; `full` of them span the width.
fn path(
    values: &[f64],
    width: f64,
    height: f64,
    top: Option<f64>,
    full: usize,
) -> (String, String) {
    let top = top.unwrap_or_else(|| values.iter().copied().fold(1.0, f64::max) * 1.15);
    let step = width / (full.max(values.len()).max(2) - 1) as f64;
    let first = width - step * values.len().saturating_sub(1) as f64;
    let mut line = String::new();
    for (at, value) in values.iter().enumerate() {
        let (x, y) = (first + step * at as f64, height - 1.0 - (height - 2.0) * value / top);
        line.push_str(&format!("{}{x:.1} {:.1}", if at == 0 { "M" } else { "L" }, y.max(1.0)));
    }
    if values.is_empty() {
        return (String::new(), String::new());
    }
    let area = format!("{line}L{width:.1} {height}L{first:.1} {height}Z");
    (area, line)
}

fn shades(away: &[bool], points_max: usize) -> Vec<(f64, f64)> {
    let step = 900.0 / points_max.max(away.len()).max(1) as f64;
    let first = 900.0 - step * away.len() as f64;
    let mut shades: Vec<(f64, f64)> = Vec::new();
    for (at, _) in away.iter().enumerate().filter(|(_, away)| **away) {
        let (from, to) = (first + step * at as f64, first + step * (at + 1) as f64);
        match shades.last_mut() {
            Some((_, end)) if (*end - from).abs() < 0.01 => *end = to,
            _ => shades.push((from, to)),
        }
    }
    shades
}

/// The next round number.
fn nice(value: f64) -> f64 {
    let power = 10_f64.powf(value.max(1.0).log10().floor());
    let found = [1.0, 2.0, 4.0, 5.0, 8.0, 10.0].iter().find(|of| **of * power >= value);
    found.copied().unwrap_or(10.0) * power
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_ends_at_the_right_edge() {
        let (_, line) = path(&[0.0, 1.0], 92.0, 24.0, Some(1.0), 3);
        assert_eq!(line, "M46.0 23.0L92.0 1.0");
        assert_eq!(path(&[], 92.0, 24.0, None, 3).1, "");
    }

    #[test]
    fn shades_join() {
        assert_eq!(shades(&[false, true, true], 3), [(300.0, 900.0)]);
        assert_eq!(means(&[1.0, 2.0, 4.0], 2), [1.0, 3.0]);
        assert_eq!([nice(3.0), nice(310.0), nice(0.2)], [4.0, 400.0, 1.0]);
    }
}

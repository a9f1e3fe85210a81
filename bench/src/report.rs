//! What is printed: raw figures of both sides, then their ratio, the goal, and whether it is met.

use anyhow::{Context, Result};

use crate::measure::Run;

/// How often each side runs, turn by turn; the median counts.
pub const ROUNDS: usize = 7;

/// Two sides measured turn by turn.
pub struct Comparison {
    limit: (&'static str, Vec<Run>),
    ours: (&'static str, Vec<Run>),
}

impl Comparison {
    /// Runs `limit` and `ours` in turn, [`ROUNDS`] times each.
    pub fn of(
        title: &str,
        (limit_name, mut limit): (&'static str, impl FnMut() -> Result<Run>),
        (ours_name, mut ours): (&'static str, impl FnMut() -> Result<Run>),
    ) -> Result<Self> {
        println!("{title}");
        let mut sides = Comparison { limit: (limit_name, vec![]), ours: (ours_name, vec![]) };
        for _ in 0..ROUNDS {
            sides.limit.1.push(limit()?);
            sides.ours.1.push(ours()?);
        }
        print_side(sides.limit.0, &sides.limit.1)?;
        print_side(sides.ours.0, &sides.ours.1)?;
        Ok(sides)
    }

    /// Prints the ratio and what is wanted of it.
    pub fn ratio(&self, goal: Option<f64>) {
        let pairs = || self.limit.1.iter().zip(&self.ours.1);
        let ratios: Vec<f64> = pairs().map(|(limit, ours)| ours.rate() / limit.rate()).collect();
        let cpu = median(pairs().map(|(limit, ours)| limit.cpu_each() / ours.cpu_each()).collect());
        let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
        let most = ratios.iter().copied().fold(0.0, f64::max);
        let ratio = median(ratios);
        // On a busy machine the ratio of CPU times is the steadier one.
        let spread = format!("{least:.2} to {most:.2}; of CPU times {cpu:.2}");
        match goal {
            Some(goal) => {
                let verdict = verdict(ratio >= goal);
                println!("  ratio {ratio:.2} ({spread})   goal ≥ {goal:.2}   {verdict}");
            }
            None => println!("  ratio {ratio:.2} ({spread})"),
        }
    }
}

/// Prints one side: the median rate and what it cost.
pub fn print_side(name: &str, runs: &[Run]) -> Result<()> {
    let middle = middle(runs)?;
    let million = middle.records as f64 / 1e6;
    println!(
        "  {name:<28} {:>12} records/s   {:>6.2} CPU s per million   peak {:>4} MB   ({} in {:.2} s)",
        thousands(middle.rate() as u64),
        middle.cpu / million,
        middle.peak / 1_000_000,
        thousands(middle.records),
        middle.wall.as_secs_f64(),
    );
    Ok(())
}

/// Prints a figure that has a goal.
pub fn print_goal(figure: &str, goal: &str, met: bool) {
    println!("  {figure}   goal {goal}   {}", verdict(met));
}

/// The run with the median rate.
pub fn middle(runs: &[Run]) -> Result<Run> {
    let mut sorted = runs.to_vec();
    sorted.sort_by(|a, b| a.rate().total_cmp(&b.rate()));
    sorted.get(sorted.len() / 2).copied().context("at least one run")
}

/// The median of some figures.
pub fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}

fn verdict(met: bool) -> &'static str {
    if met { "met" } else { "MISSED" }
}

/// `1,234,567`.
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_readable_and_medians_are_in_the_middle() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(thousands), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
    }
}

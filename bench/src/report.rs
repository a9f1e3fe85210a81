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

/// One of several that are measured turn by turn: its name, and one run of it.
pub type Side<'a> = (&'static str, Box<dyn FnMut() -> Result<Run> + 'a>);

/// Any number of sides measured turn by turn.
pub struct Contest {
    sides: Vec<(&'static str, Vec<Run>)>,
}

impl Contest {
    /// Runs the sides in turn, `rounds` times each.
    pub fn of(title: &str, rounds: usize, mut sides: Vec<Side<'_>>) -> Result<Self> {
        println!("{title}");
        let mut runs: Vec<_> = sides.iter().map(|(name, _)| (*name, Vec::new())).collect();
        for _ in 0..rounds {
            for ((name, side), (_, runs)) in sides.iter_mut().zip(&mut runs) {
                runs.push(side().with_context(|| format!("{name} failed"))?);
            }
        }
        for (name, runs) in &runs {
            print_side(name, runs)?;
        }
        Ok(Contest { sides: runs })
    }

    /// Prints how `ours` compares to `limit`, round by round, and what is wanted of it.
    pub fn ratio(&self, ours: &str, limit: &str, goal: Option<f64>) -> Result<()> {
        let ratios = self.ratios(ours, limit)?;
        let (low, high) = ratios
            .iter()
            .fold((f64::MAX, f64::MIN), |(low, high), &ratio| (low.min(ratio), high.max(ratio)));
        let ratio = median(ratios);
        print!("  {ours} / {limit}: {ratio:.2} ({low:.2}–{high:.2})");
        match goal {
            Some(goal) => println!("   goal ≥ {goal:.2}   {}", verdict(ratio >= goal)),
            None => println!(),
        }
        Ok(())
    }

    fn ratios(&self, ours: &str, limit: &str) -> Result<Vec<f64>> {
        let side = |wanted: &str| {
            let side = self.sides.iter().find(|(name, _)| *name == wanted);
            side.map(|(_, runs)| runs).with_context(|| format!("a side {wanted}"))
        };
        let pairs = side(ours)?.iter().zip(side(limit)?);
        Ok(pairs.map(|(ours, limit)| ours.rate() / limit.rate()).collect())
    }
}

/// Prints one side: the median rate and what it cost.
pub fn print_side(name: &str, runs: &[Run]) -> Result<()> {
    let middle = middle(runs)?;
    let million = middle.records as f64 / 1e6;
    let servers = middle.servers.map(|cpu| format!(", servers {:.2}", cpu / million));
    println!(
        "  {name:<28} {:>12} records/s   {:>6.2} CPU s per million{}   peak {:>4} MB   ({} in {:.2} s)",
        thousands(middle.rate() as u64),
        middle.cpu / million,
        servers.unwrap_or_default(),
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
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_contest_compares_round_by_round() {
        let side = |name, rates: [u64; 3]| {
            let mut rates = rates.into_iter();
            let run = move || {
                let records = rates.next().unwrap_or_default();
                Ok(Run { records, wall: Duration::from_secs(1), cpu: 0.0, peak: 0, servers: None })
            };
            (name, Box::new(run) as Box<dyn FnMut() -> Result<Run>>)
        };
        let sides = vec![side("bare", [100, 50, 200]), side("ours", [80, 50, 100])];
        let contest = Contest::of("a contest", 3, sides).unwrap();
        assert_eq!(contest.ratios("ours", "bare").unwrap(), [0.8, 1.0, 0.5]);
        assert!(contest.ratio("ours", "nobody", None).is_err());
    }

    #[test]
    fn figures_are_readable_and_medians_are_in_the_middle() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(thousands), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
    }
}

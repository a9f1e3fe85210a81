//! `/api/v1/rates`: what the sampler keeps, for programs; and what has changed lately.

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};

use crate::access::{Role, Visitor};
use crate::letters::cause_of;
use crate::request::Params;
use crate::sampler::{Change, Totals, Window, lately};
use crate::{Admin, ApiError};

/// Changes that are told.
const CHANGES_MAX: usize = 200;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RatesQuery {
    pipeline: Option<String>,
    /// How far back; as far as it goes where not given.
    seconds: Option<u64>,
    /// A number for every so many seconds: 1, for fifteen minutes, or 10, for six hours.
    every: Option<u64>,
}

#[derive(Serialize)]
pub(crate) struct Rates {
    /// Seconds between two numbers.
    every: u64,
    /// When the last of them was taken.
    until: String,
    pipelines: Vec<PipelineRates>,
}

/// Records a second, oldest first, unless it says otherwise.
#[derive(Serialize)]
struct PipelineRates {
    pipeline: String,
    /// Over the last few seconds.
    now: CurrentRates,
    received: Vec<f64>,
    delivered: Vec<f64>,
    filtered: Vec<f64>,
    dead_lettered: Vec<f64>,
    retries: Vec<f64>,
    /// How many, not how many a second; null where the log did not answer.
    lag: Vec<Option<u64>>,
    held: Vec<u64>,
    destinations: Vec<DestinationRates>,
}

/// Null where nothing is known yet.
#[derive(Serialize)]
struct CurrentRates {
    received: Option<f64>,
    delivered: Option<f64>,
}

#[derive(Serialize)]
struct DestinationRates {
    destination: String,
    /// Messages it took a second.
    delivered: Vec<f64>,
}

pub(crate) async fn rates(
    State(admin): State<Admin>,
    Params(wish): Params<RatesQuery>,
) -> Result<Json<Rates>, ApiError> {
    let snapshot = admin.snapshot().await;
    let sampler = admin.sampler();
    let mut known = sampler.pipelines();
    if let Some(only) = &wish.pipeline {
        if !known.contains(only) {
            return Err(ApiError::unknown_pipeline(only, &known));
        }
        known.retain(|name| name == only);
    }
    let window = match wish.every {
        None | Some(1) => Window::Minutes,
        Some(10) => Window::Hours,
        Some(other) => {
            return Err(ApiError::usage(format!("`every={other}` is neither 1 nor 10")));
        }
    };
    let most = wish.seconds.map_or(u64::MAX, |seconds| seconds / window.seconds());
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let of = |name: String| {
        let rates =
            |of: fn(&Totals) -> u64| rounded(sampler.rates_in(window, Some(&name), of), most);
        let (received, delivered) = (rates(|t| t.received), rates(|t| t.delivered));
        let now =
            |of: fn(&Totals) -> u64| lately(&rounded(sampler.rates(Some(&name), of), usize::MAX));
        let destinations = snapshot.of(&name).map(|status| &status.destinations);
        let destinations = destinations.into_iter().flatten().map(|to| DestinationRates {
            destination: to.destination.clone(),
            delivered: rounded(destination(&admin, window, &name, &to.destination), most),
        });
        PipelineRates {
            now: CurrentRates { received: now(|t| t.received), delivered: now(|t| t.delivered) },
            filtered: rates(|t| t.filtered),
            dead_lettered: rates(|t| t.dead_lettered),
            retries: rates(|t| t.retries),
            lag: last(sampler.levels_in(window, &name, |t| t.lag), most),
            held: last(sampler.levels_in(window, &name, |t| t.held), most),
            destinations: destinations.collect(),
            received,
            delivered,
            pipeline: name.clone(),
        }
    };
    Ok(Json(Rates {
        every: window.seconds(),
        until: snapshot.at.to_string(),
        pipelines: known.into_iter().map(of).collect(),
    }))
}

/// Messages a second that a destination took.
pub(crate) fn destination(
    admin: &Admin,
    window: Window,
    pipeline: &str,
    destination: &str,
) -> Vec<f64> {
    admin.sampler().rates_in(window, Some(pipeline), |totals| {
        let known = totals.destinations.iter().find(|(name, _)| **name == *destination);
        known.map_or(0, |(_, delivered)| *delivered)
    })
}

pub(crate) async fn changes(State(admin): State<Admin>, visitor: Visitor) -> Json<Vec<Change>> {
    admin.snapshot().await;
    let mut changes = admin.sampler().changes(CHANGES_MAX);
    if !visitor.may(Role::Operator) {
        changes.iter_mut().for_each(|change| change.what = cause_of(&change.what));
    }
    Json(changes)
}

fn rounded(rates: Vec<f64>, most: usize) -> Vec<f64> {
    let rates = last(rates, most).into_iter();
    rates.map(|rate| (rate * 10.0).round() / 10.0).collect()
}

fn last<T>(mut all: Vec<T>, most: usize) -> Vec<T> {
    let over = all.len().saturating_sub(most);
    all.drain(..over);
    all
}

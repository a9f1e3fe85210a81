//! Reading requests, with errors in the shape of [`crate::error`].

use axum::body::{Body, Bytes};
use axum::extract::{FromRequestParts, Query};
use axum::http::StatusCode;
use axum::http::request::Parts;
use serde::de::DeserializeOwned;

use crate::ApiError;

/// The parameters behind `?`.
pub(crate) struct Params<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Params<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        match Query::<T>::try_from_uri(&parts.uri) {
            Ok(Query(params)) => Ok(Params(params)),
            Err(error) => Err(ApiError::usage("the query of the request cannot be read")
                .because(error.body_text())),
        }
    }
}

/// The whole body, if it is not over `bytes_max`.
pub(crate) async fn whole(body: Body, bytes_max: usize) -> Result<Bytes, ApiError> {
    axum::body::to_bytes(body, bytes_max).await.map_err(|error| {
        // The limit is an error of the body like any other; only its text tells it apart.
        if std::error::Error::source(&error).is_some_and(|e| e.to_string().contains("limit")) {
            too_large(bytes_max)
        } else {
            ApiError::usage("the body of the request did not arrive whole").because(error)
        }
    })
}

pub(crate) fn too_large(bytes_max: usize) -> ApiError {
    ApiError::new(
        StatusCode::PAYLOAD_TOO_LARGE,
        "P0505",
        format!("a request may hold {bytes_max} bytes at most"),
    )
    .hint("send fewer records per request; a single record may have 64 MiB")
}

/// A small JSON body.
pub(crate) async fn json<T: DeserializeOwned>(body: Body) -> Result<T, ApiError> {
    let bytes = whole(body, 1 << 20).await?;
    serde_json::from_slice(&bytes).map_err(|error| {
        ApiError::usage("the body of the request is not the JSON it should be").because(error)
    })
}

//! HTTP sources: what the listener is to take, and for which topics.

use potok_config::{Input, LoadedFile, Pipeline};
use potok_server::{HttpAuth, HttpSource};

/// The HTTP sources of all pipelines.
pub fn http_sources(pipelines: &[LoadedFile<Pipeline>]) -> Vec<HttpSource> {
    let mut sources = Vec::new();
    for pipeline in pipelines {
        for input in pipeline.inputs() {
            let Input::Topics { topics, http: Some(http), .. } = input else { continue };
            let auth = http.auth.as_ref().and_then(|auth| {
                let header = auth.header.clone();
                let exposed = |secret: &potok_config::Secret| secret.expose().to_owned();
                match (&auth.secret, &auth.hmac) {
                    (Some(secret), _) => Some(HttpAuth::Secret { header, secret: exposed(secret) }),
                    (None, Some(key)) => Some(HttpAuth::Signature { header, secret: exposed(key) }),
                    (None, None) => None,
                }
            });
            let verify = http.auth.as_ref().and_then(|auth| auth.verify.as_ref());
            let verify = verify.map(|token| token.expose().to_owned());
            let verify = verify.filter(|token| !token.is_empty());
            sources.extend(topics.iter().map(|topic| HttpSource {
                pipeline: pipeline.name.to_string(),
                path: http.path.to_string(),
                topic: topic.as_str().into(),
                key: http.key.as_ref().map(|key| key.template().clone()),
                each: http.each.as_ref().map_or_else(Vec::new, |each| each.steps().to_vec()),
                auth: auth.clone(),
                verify: verify.clone(),
            }));
        }
    }
    sources
}

//! HTTP sources: what the listener is to take, and for which topics.

use potok_config::{Input, LoadedFile, Pipeline};
use potok_expr::Template;
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
            let key = http.key.as_ref().map(|key| key.template().clone());
            let key = key.or_else(|| shard_key(pipeline));
            sources.extend(topics.iter().map(|topic| HttpSource {
                pipeline: pipeline.name.to_string(),
                path: http.path.to_string(),
                topic: topic.as_str().into(),
                key: key.clone(),
                each: http.each.as_ref().map_or_else(Vec::new, |each| each.steps().to_vec()),
                auth: auth.clone(),
                verify: verify.clone(),
            }));
        }
    }
    sources
}

/// Where nobody names a key, the value that tells the shard: what belongs to one of them is in one
/// partition and keeps its order.
fn shard_key(pipeline: &Pipeline) -> Option<Template> {
    let shard = pipeline.group.as_ref()?.shard.as_ref()?;
    Template::parse(shard.by.path().source()).ok()
}

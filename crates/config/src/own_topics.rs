//! The topics that pipelines have for themselves, and who else uses them.

use crate::deliver::Deliver;
use crate::pipeline::Pipeline;

impl Pipeline {
    /// The topics that are potok's own for its sake; that of its dead letters first.
    pub fn own_topics(&self) -> Vec<String> {
        let dead = self.dead_letter_topic();
        let resolved = format!("{dead}-resolved");
        let mut own = vec![dead, resolved, format!("{}-replay", self.name)];
        own.extend(self.group.is_some().then(|| format!("potok-{}", self.name)));
        own
    }
}

/// What one of two pipelines has for itself and the other uses for something else, and where the
/// later file says so. Dead letters may be read by others.
pub(crate) fn clash(
    later: &Pipeline,
    earlier: &Pipeline,
) -> Option<(String, &'static [&'static str])> {
    let (ours, theirs) = (later.own_topics(), earlier.own_topics());
    if let Some(topic) = ours.iter().find(|topic| theirs.contains(topic)) {
        let what = format!("`{topic}` is a topic of another pipeline's own too");
        return Some((what, &["dead_letter", "topic"]));
    }
    let what = |topic: String| format!("`{topic}` is a topic of another pipeline's own");
    if let Some(topic) = used(later, &theirs) {
        return Some((what(topic), &["deliver"]));
    }
    used(earlier, &ours).map(|topic| (what(topic), &["dead_letter", "topic"][..]))
}

/// Which of another's own topics a pipeline uses.
fn used(pipeline: &Pipeline, own: &[String]) -> Option<String> {
    let written = pipeline.deliver.iter().flat_map(Deliver::topics);
    let read = pipeline.topics().into_iter();
    let read = read.filter(|topic| own.first().is_none_or(|dead_letters| dead_letters != topic));
    written.chain(read).find(|topic| own.iter().any(|own| own == topic)).map(str::to_owned)
}

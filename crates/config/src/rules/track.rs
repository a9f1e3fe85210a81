//! What `files` and `track` need: slices of the clock, shards, and names for what is tracked.

use super::{Rules, entries_of, present};
use crate::problem::code;
use crate::track::files_keep;
use crate::tree::Node;
use crate::values::{Period, TextValue};

impl Rules<'_> {
    pub(super) fn track(&mut self) {
        let group = self.root.get("group");
        let files = group.and_then(|group| group.entry("files"));
        let track = self.root.entry("track");
        for entry in [files, track].into_iter().flatten() {
            let has_shards = group.is_some_and(|group| group.get("shard").is_some());
            let every = group.and_then(|group| group.get("close")?.get("every"));
            if !has_shards || every.is_none() {
                let what = format!("`{}` needs shards and slices of the clock", entry.key);
                let hint = "add `group: { shard: { by: …, of: 2 }, close: { every: 10s } }`";
                self.add(code::FILES, &entry.key_at, what, hint);
                return;
            }
            if let Some(kinds) = group.and_then(|group| group.entry("kinds")) {
                let what = format!("`{}` with `kinds`: a file has records of one kind", entry.key);
                self.add(code::FILES, &kinds.key_at, what, "make it two pipelines");
            }
        }
        if files.or(track).is_none() {
            return;
        }
        let every = group.and_then(|group| group.get("close")?.get("every"));
        let period = |node: &Node| Period::read(node.text()?).ok();
        if let Some((node, every)) = every.and_then(|node| Some((node, period(node)?)))
            && (every.as_millis() % 1_000 != 0 || every.is_zero())
        {
            let what = "a slice that becomes a file has whole seconds: its start is its name";
            self.add(code::FILES, &node.at, what, "e.g. `every: 10s`");
        }
        if let Some(decode) = self.root.get("decode").and_then(|decode| decode.get("format"))
            && decode.text() == Some("raw")
        {
            let what = "files of raw bytes: a file has one JSON value to a line";
            self.add(code::RAW, &decode.at, what, "use `format: json`");
        }
        if let Some(track) = track {
            self.tracked(&track.value);
            self.rows_outlive_files(&track.value, files.map(|files| &files.value));
        }
    }

    /// A file whose row is gone is in nobody's list, and its name is free for another group.
    fn rows_outlive_files(&mut self, track: &Node, files: Option<&Node>) {
        let read = |node: &Node| Period::read(node.text()?).ok();
        let Some((keep, files)) = track.get("keep").zip(files) else { return };
        let kept = match files.get("keep") {
            Some(node) => read(node),
            None => Some(files_keep()),
        };
        let Some((rows, files)) = read(keep).zip(kept).filter(|(rows, files)| rows < files) else {
            return;
        };
        let what = format!("rows are kept for {rows}, and their files for {files}");
        let hint = format!("`keep: {files}` or longer, or keep the files for less");
        self.add(code::ROWS_KEPT, &keep.at, what, &hint);
    }

    fn tracked(&mut self, track: &Node) {
        let group = self.root.get("group");
        let mut stages: Vec<&str> = Vec::new();
        let mut unnamed = Vec::new();
        let steps = group.into_iter().chain(group.and_then(|group| group.get("shard")));
        for step in steps.chain(entries_of(self.root, "deliver")) {
            match step.get("stage") {
                Some(stage) => stages.extend(stage.text()),
                None if step.is_map() => unnamed.push(step.at.start..step.at.start + 1),
                None => {}
            }
        }
        for at in unnamed {
            let what = "this step is tracked and has no name";
            self.add(code::FILES, &at, what, "add `stage: …`: it is a column of the table");
        }
        let process = entries_of(self.root, "process").iter().filter_map(|s| s.get("stage"));
        stages.extend(process.filter_map(Node::text));
        for deliver in entries_of(self.root, "deliver") {
            // Its outputs are written with the end of the record, after `done`.
            for topic in present(deliver, &["topic"]) {
                let what =
                    "`track` with a topic as destination: `done` would come before it is there";
                self.add(code::FILES, &topic.key_at, what, "deliver to a database");
            }
        }
        for stuck in track.get("stuck").map(Node::entries).unwrap_or_default() {
            if !stages.contains(&stuck.key.as_str()) {
                let what = format!("no stage is called `{}`", stuck.key);
                let hint = match crate::check::nearest(&stuck.key, stages.iter().copied()) {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => "stages are named by `stage:` in this file".to_owned(),
                };
                self.add(code::NO_SUCH_WORD, &stuck.key_at, what, &hint);
            }
            let period = stuck.value.text().and_then(|text| Period::read(text).ok());
            if period.is_some_and(|period| period.as_millis() % 60_000 != 0) {
                let what = "a stage is stuck after whole minutes: the table is asked in minutes";
                self.add(code::FILES, &stuck.value.at, what, "e.g. `5m`");
            }
        }
    }
}

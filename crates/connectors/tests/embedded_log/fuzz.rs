//! Hostile bytes in the log's files: it opens, reports, and loses nothing but what was hit.

use potok_core::Log;
use potok_fuzz::{Chance, Corpus, rounds, seed};
use potok_testkit::FaultyDisk;

use super::damage::{build, check_hit};
use super::support::*;

/// Some bytes of a good file are others now, wherever and however many: every frame that was not hit
/// is still there, and what was is reported, kept and open again.
#[test]
fn frames_that_were_not_hit_survive() {
    run(async {
        let model = build().await;
        let files = segments(&model.disk);
        for round in 0..rounds(400) {
            let mut chance = Chance::new(seed().wrapping_mul(1 << 40).wrapping_add(round));
            let path = &files[chance.below(files.len())];
            let mut bytes = model.disk.contents(path);
            let from = chance.below(bytes.len());
            let to = (from + 1 + chance.below(120)).min(bytes.len());
            let before = bytes[from..to].to_vec();
            match chance.below(4) {
                0 => bytes[from..to].fill(0),
                1 => bytes[from..to].fill(0xff),
                // Not a piece of the log itself: see `format` on what a record's checksum says.
                2 => bytes[from..to].iter_mut().for_each(|byte| *byte = byte.wrapping_add(1)),
                _ => bytes[from..to].iter_mut().for_each(|byte| *byte = chance.bits() as u8),
            }
            if bytes[from..to] == before {
                continue;
            }
            let disk = model.disk.copy();
            disk.overwrite(path, bytes);
            let checked = check_hit(&model, &disk).await;
            checked.unwrap_or_else(|wrong| panic!("round {round}, {path:?} {from}..{to}: {wrong}"));
        }
    });
}

/// Any bytes at all where a segment should be.
#[test]
fn any_bytes_are_opened_and_worked_on_with() {
    let model = run(build());
    let files = segments(&model.disk);
    let made = files.iter().map(|path| model.disk.contents(path));
    let corpus = Corpus::read(concat!(env!("CARGO_MANIFEST_DIR"), "/corpus/segments")).with(made);
    corpus.fuzz(300, |input| {
        run(async {
            for among in [false, true] {
                let disk = if among { model.disk.copy() } else { FaultyDisk::new() };
                if !among {
                    drop(open(&disk));
                }
                let path = segments(&disk).pop().unwrap();
                disk.overwrite(&path, input.to_vec());
                let first = match open_with(&disk, small()) {
                    Ok(log) => {
                        let position = append(&log, "in", "<new>").await.unwrap();
                        assert_eq!(values(&log, "in").await.get(&position).unwrap(), "<new>");
                        for topic in log.topics().await.unwrap() {
                            read_all(&log, &topic.topic).await;
                        }
                        position
                    }
                    // It says of itself that a later version wrote it.
                    Err(fault) if fault.code == "P0211" => continue,
                    Err(fault) => panic!("{fault}"),
                };
                let log = open(&disk);
                assert_eq!(values(&log, "in").await.get(&first).unwrap(), "<new>", "again");
            }
        });
    });
}

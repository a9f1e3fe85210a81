//! The limit of any log: one file, records with length and checksum, an fsync per group.

use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::path::Path;

use anyhow::{Result, ensure};
use bytes::Bytes;

/// Appends `groups` times the same records, each group synced before the next begins.
pub fn append(path: &Path, records: &[Bytes], groups: u64) -> Result<()> {
    let mut file = File::create(path)?;
    let mut buffer = Vec::new();
    for _ in 0..groups {
        buffer.clear();
        for record in records {
            buffer.extend_from_slice(&(record.len() as u32).to_le_bytes());
            buffer.extend_from_slice(&crc32fast::hash(record).to_le_bytes());
            buffer.extend_from_slice(record);
        }
        file.write_all(&buffer)?;
        file.sync_data()?;
    }
    Ok(())
}

/// Reads everything back and checks it; returns the number of records.
pub fn read(path: &Path) -> Result<u64> {
    let mut file = BufReader::with_capacity(1 << 20, File::open(path)?);
    let (mut head, mut record, mut count) = ([0; 8], Vec::new(), 0);
    while file.read_exact(&mut head).is_ok() {
        let [a, b, c, d, crc @ ..] = head;
        record.resize(u32::from_le_bytes([a, b, c, d]) as usize, 0);
        file.read_exact(&mut record)?;
        ensure!(crc32fast::hash(&record) == u32::from_le_bytes(crc), "record {count} is damaged");
        count += 1;
    }
    Ok(count)
}

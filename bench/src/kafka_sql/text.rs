//! Orders as files of rows, for what databases load fastest.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use potok_traffic::orders::OrderGenerator;

use crate::order::{Cell, TABLES};
use crate::services::LANES;

/// The files of one connection: one per table, values between tabs.
pub struct TableFiles(Vec<PathBuf>);

impl TableFiles {
    /// In the order of [`TABLES`].
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.0.iter().map(PathBuf::as_path)
    }
}

/// All orders, as many files as there are connections.
pub struct Parts {
    pub orders: u64,
    pub all: Vec<TableFiles>,
}

impl Parts {
    /// Writes them. The generator's texts have nothing that would have to be escaped.
    pub fn write(folder: &Path, orders: u64, seed: u64) -> Result<Self> {
        let mut generator = OrderGenerator::good_only(seed);
        let mut all = Vec::new();
        for part in 0..LANES as u64 {
            let folder = folder.join(format!("part-{part}"));
            fs::create_dir_all(&folder)?;
            let paths: Vec<_> = TABLES.iter().map(|(table, _)| folder.join(table)).collect();
            let create = |path: &PathBuf| Ok(BufWriter::new(File::create(path)?));
            let mut files = paths.iter().map(create).collect::<Result<Vec<_>>>()?;
            for number in (part..orders).step_by(LANES) {
                let order = generator.good();
                let order = serde_json::from_slice::<crate::order::Order<'_>>(&order.bytes);
                let position = format!("orders/{part}/{number}@0000000000000000/0/0");
                let mut written = Ok(());
                order.context("a good order")?.rows(&position, |table, row| {
                    if let (Ok(()), Some(file)) = (&written, files.get_mut(table)) {
                        written = line(file, row);
                    }
                });
                written?;
            }
            files.iter_mut().try_for_each(BufWriter::flush)?;
            all.push(TableFiles(paths));
        }
        Ok(Parts { orders, all })
    }
}

fn line(file: &mut impl Write, row: &[Cell<'_>]) -> std::io::Result<()> {
    let mut before = "";
    for cell in row {
        match cell {
            Cell::Text(text) => write!(file, "{before}{text}")?,
            Cell::Number(number) => write!(file, "{before}{number}")?,
        }
        before = "\t";
    }
    writeln!(file)
}

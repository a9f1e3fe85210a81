//! One call of a SQL destination: from a batch to rows, from endings to a receipt.

use potok_core::{Batch, Outcome, Receipt};
use potok_expr::json::Parser;

use super::{Rows, Tables};

/// Messages that were not simply delivered, by index in their batch.
pub(crate) type Endings = Vec<(usize, Outcome)>;

/// Reads the rows of a batch, on the lane that delivers it. What does not fit is named.
pub(crate) fn read(tables: &Tables, batch: &Batch) -> (Rows, Endings) {
    let bytes = batch.messages.iter().map(|message| message.value.len()).sum();
    let mut rows = Rows::with_capacity(bytes, batch.messages.len());
    let mut set_aside = Endings::new();
    let mut parser = Parser::new();
    for (index, message) in batch.messages.iter().enumerate() {
        if let Err(fault) = rows.add(tables, &mut parser, index, message) {
            set_aside.push((index, Outcome::Failed(fault)));
        }
    }
    (rows, set_aside)
}

/// Everything that is not in either list was delivered.
pub(crate) fn receipt(mut set_aside: Endings, endings: Endings) -> Receipt {
    set_aside.extend(endings);
    set_aside.sort_by_key(|(index, _)| *index);
    let mut receipt = Receipt::delivered();
    for (index, outcome) in set_aside {
        receipt.set(index, outcome);
    }
    receipt
}

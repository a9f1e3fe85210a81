//! The hub over real sockets, with clients written by hand: what the stock client never does.

mod acknowledgements;
mod bounds;
mod calls;
mod doors;
mod endings;
mod support;

//! Work in pieces that keep one call of Redis short: it does nothing else meanwhile.

/// Records, groups or places in one call.
const COUNT_MAX: usize = 500;
/// Bytes in one call. What is larger alone goes alone.
pub(super) const BYTES_MAX: usize = 4 << 20;

/// Cuts `items` into pieces, in order.
pub(super) fn chunks<T>(items: &[T], bytes: impl Fn(&T) -> usize) -> impl Iterator<Item = &[T]> {
    let mut rest = items;
    std::iter::from_fn(move || {
        let mut size = 0_usize;
        let mut count = 0;
        for item in rest.iter().take(COUNT_MAX) {
            size = size.saturating_add(bytes(item));
            if count > 0 && size > BYTES_MAX {
                break;
            }
            count += 1;
        }
        let (chunk, behind) = rest.split_at(count);
        rest = behind;
        (count > 0).then_some(chunk)
    })
}

/// Sorts the items of one `key` together, otherwise in order.
pub(super) fn gathered<T, K: Ord + ?Sized>(items: &[T], key: impl Fn(&T) -> &K) -> Vec<&T> {
    let mut gathered: Vec<&T> = items.iter().collect();
    gathered.sort_by(|one, two| key(one).cmp(key(two)));
    gathered
}

/// Runs of items with the same `key`.
pub(super) fn runs<T, K: PartialEq + ?Sized>(
    items: &[T],
    key: impl Fn(&T) -> &K,
) -> impl Iterator<Item = &[T]> {
    items.chunk_by(move |one, two| key(one) == key(two))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_bounded_and_nothing_is_left_out() {
        let lengths = |items: &[usize]| -> Vec<usize> {
            chunks(items, |bytes| *bytes).map(<[usize]>::len).collect()
        };
        assert_eq!(lengths(&[]), [0; 0]);
        assert_eq!(lengths(&[0; 1_200]), [500, 500, 200]);
        assert_eq!(lengths(&[BYTES_MAX / 2; 5]), [2, 2, 1]);
        assert_eq!(lengths(&[1, usize::MAX, usize::MAX, 1]), [1, 1, 1, 1]);
    }

    #[test]
    fn those_of_one_key_come_together_and_stay_in_order() {
        let items = [("b", 1), ("a", 2), ("b", 3), ("a", 4), ("", 5)];
        let order = gathered(&items, |(key, _)| *key).into_iter().map(|(_, number)| *number);
        assert_eq!(order.collect::<Vec<_>>(), [5, 2, 4, 1, 3]);
    }
}

//! The pages of `docs/errors`, one per code that users meet, inside the binary.
//!
//! The build script lists the folder: a new page is a new file and nothing else. Codes: P01xx the
//! files (this crate), P02xx the log, P03xx databases, P04xx the engine, P05xx command line and
//! admin API, P06xx Kafka, P07xx PostgreSQL, P08xx MariaDB, P09xx Redis, P10xx webhooks, P11xx the hub,
//! P12xx queues, P13xx outboxes, P14xx shards and files, P15xx the dashboard, P16xx access tokens.

const PAGES: &[(&str, &str)] = &include!(concat!(env!("OUT_DIR"), "/pages.rs"));

/// The page of a code, in Markdown; `None` where there is no such code. Case does not matter.
pub fn explain(code: &str) -> Option<&'static str> {
    let code = code.trim();
    PAGES.iter().find(|(known, _)| known.eq_ignore_ascii_case(code)).map(|(_, page)| *page)
}

/// Every code that has a page, in order.
pub fn explain_codes() -> impl Iterator<Item = &'static str> {
    PAGES.iter().map(|(code, _)| *code)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;

    /// Every code in the sources of this crate.
    fn codes_used() -> Vec<String> {
        let source = include_str!("problem.rs");
        let quoted = source.split('"').filter(|text| text.len() == 5 && text.starts_with("P0"));
        quoted.map(str::to_owned).collect()
    }

    #[test]
    fn every_code_of_this_crate_has_a_page() {
        let codes = codes_used();
        assert!(codes.len() > 25);
        for code in codes {
            let page = explain(&code).unwrap_or_else(|| panic!("no page docs/errors/{code}.md"));
            assert!(page.starts_with(&format!("# {code}: ")), "{code}");
        }
    }

    #[test]
    fn codes_are_found_in_any_case() {
        assert_eq!(explain("p0120").unwrap(), explain("P0120").unwrap());
        assert_eq!(explain("P99"), None);
    }
}

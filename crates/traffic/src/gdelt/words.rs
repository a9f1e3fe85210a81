//! What generated news is made of. Texts stand as they do between quotation marks in JSON.

/// Who does something.
pub(super) struct Actor {
    pub code: &'static str,
    pub name: &'static str,
    pub country: Option<&'static str>,
    pub role: Option<&'static str>,
}

const fn nation(code: &'static str, name: &'static str) -> Actor {
    Actor { code, name, country: Some(code), role: None }
}

const fn role(code: &'static str, name: &'static str) -> Actor {
    Actor { code, name, country: None, role: Some(code) }
}

pub(super) const ACTORS: &[Actor] = &[
    nation("USA", "UNITED STATES"),
    nation("LVA", "LATVIA"),
    nation("BRA", "SÃO PAULO"),
    nation("GEO", "ТБИЛИСИ"),
    nation("KAZ", "ҚАЗАҚСТАН"),
    nation("CHE", "ZÜRICH"),
    nation("JPN", "東京"),
    nation("EGY", "القاهرة"),
    role("GOV", "GOVERNMENT"),
    role("COP", "POLICE"),
    role("JUD", "JUDGE"),
    role("EDU", "UNIVERSITY"),
    role("BUS", "COMPANY"),
    role("MED", "\\\"HARBOUR\\\" RADIO"),
    Actor { code: "NZLGOV", name: "WELLINGTON", country: Some("NZL"), role: Some("GOV") },
    Actor { code: "PRTBUS", name: "PORTO BUSINESS", country: Some("PRT"), role: Some("BUS") },
];

/// Where something happens. The region starts with the country.
pub(super) struct Location {
    pub kind: u8,
    pub name: &'static str,
    pub region: &'static str,
    pub district: Option<&'static str>,
    pub lat: &'static str,
    pub long: &'static str,
    pub feature: &'static str,
}

pub(super) const PLACES: &[Location] = &[
    city("Riga, Rīga, Latvia", "LG25", Some("30210"), "56.95", "24.1", "-3230001"),
    city("São Paulo, São Paulo, Brazil", "BR27", Some("9103"), "-23.55", "-46.6333", "-671824"),
    city("Tbilisi, T'bilisi, Georgia", "GG51", None, "41.725", "44.7908", "-2327001"),
    city("Almaty, Алматы, Kazakhstan", "KZ02", None, "43.25", "76.95", "-2339002"),
    city("Łódź, Łódzkie, Poland", "PL74", Some("24901"), "51.75", "19.4667", "-517003"),
    city("Porto, Porto, Portugal", "PO17", Some("20004"), "41.15", "-8.6167", "-3050004"),
    // On the equator and on the meridian: zero is a place, not a gap.
    city("Pontianak, Kalimantan Barat, Indonesia", "ID11", None, "0.0", "109.3333", "-2690005"),
    city("Greenwich, London, United Kingdom", "UKH9", Some("40110"), "51.4779", "0.0", "-2590006"),
    Location { kind: 1, ..city("New Zealand", "NZ", None, "-42.0", "174.0", "NZ") },
    Location { kind: 1, ..city("United States", "US", None, "39.8282", "-98.5795", "US") },
    Location {
        kind: 2,
        ..city("Oregon, United States", "USOR", None, "44.5672", "-122.127", "OR")
    },
    Location {
        kind: 3,
        ..city(
            "Springfield, Oregon, United States",
            "USOR",
            Some("OR039"),
            "44.0462",
            "-123.022",
            "11",
        )
    },
    Location { kind: 5, ..city("Adjara, Georgia", "GG04", None, "41.6", "42.0667", "-2327007") },
];

const fn city(
    name: &'static str,
    region: &'static str,
    district: Option<&'static str>,
    lat: &'static str,
    long: &'static str,
    feature: &'static str,
) -> Location {
    Location { kind: 4, name, region, district, lat, long, feature }
}

/// What is done, by the CAMEO code book: code, class, weight.
pub(super) struct Action {
    pub code: &'static str,
    pub class: u8,
    pub goldstein: &'static str,
}

const fn action(code: &'static str, class: u8, goldstein: &'static str) -> Action {
    Action { code, class, goldstein }
}

pub(super) const ACTIONS: &[Action] = &[
    action("010", 1, "0.0"),
    action("020", 1, "3.0"),
    action("0231", 1, "3.4"),
    action("036", 1, "4.0"),
    action("040", 1, "1.0"),
    action("042", 1, "1.9"),
    action("043", 1, "2.8"),
    action("051", 1, "3.4"),
    action("060", 2, "6.0"),
    action("073", 2, "7.4"),
    action("084", 2, "7.0"),
    action("110", 3, "-2.0"),
    action("112", 3, "-2.0"),
    action("120", 3, "-4.0"),
    action("141", 3, "-6.5"),
    action("173", 4, "-5.0"),
    action("190", 4, "-10.0"),
];

/// Names that nobody can register.
pub(super) const HOSTS: &[&str] = &[
    "daily-harbour.example",
    "oregon-post.example",
    "novosti.example",
    "jornal-do-porto.example",
    "lodz24.example",
    "the-ring-road-review.example",
];

pub(super) const SECTIONS: &[&str] = &["news", "world", "local/politics", "economy", "sport"];

pub(super) const TITLE: &[&str] = &[
    "council",
    "agrees",
    "on",
    "new",
    "bridge",
    "after",
    "long",
    "debate",
    "minister",
    "visits",
    "harbour",
    "talks",
    "go",
    "record",
    "harvest",
    "court",
    "hears",
    "appeal",
    "students",
    "march",
    "city",
    "opens",
    "school",
    "%D0%BC%D0%BE%D1%81%D1%82",
    "%C5%82%C3%B3d%C5%BA",
];

pub(super) const LANGUAGES: &[&str] = &[
    "srclc:rus;eng:GT-RUS 1.0",
    "srclc:por;eng:GT-POR 1.0",
    "srclc:pol;eng:Moses 2.1.1 / MosesCore Europarl pl-en",
];

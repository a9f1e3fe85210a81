//! What `potok.yaml` says of an SQLite file.

use std::path::PathBuf;
use std::sync::Arc;

use crate::sql::{DatabaseLocation, DatabaseSystem, Dialect, SqlTracker};

use super::SqliteSink;
use super::track::SqliteTracking;

/// The database of a name that nobody has set, too.
pub(crate) const DATABASE: DatabaseSystem = DatabaseSystem {
    forms: &["sqlite", "sqlite:FILE"],
    takes: |text| text == "sqlite" || file(text).is_some(),
    dialect: Dialect::Sqlite,
    open: |place, config| Ok(Arc::new(SqliteSink::new(path(place), config)?)),
    track: Some(|place, config| {
        let database = SqliteTracking::new(&config.label, path(place));
        Ok(Arc::new(SqlTracker::new(database, config)))
    }),
};

fn file(text: &str) -> Option<&str> {
    text.strip_prefix("sqlite:").filter(|file| !file.is_empty())
}

/// The file: as it is set, else that of the name in the data folder.
pub(crate) fn path(place: &DatabaseLocation<'_>) -> PathBuf {
    let set = place
        .location
        .and_then(|location| file(location.text.expose()).map(|file| location.base_dir.join(file)));
    set.unwrap_or_else(|| place.data_dir.join("db").join(format!("{}.sqlite", place.name)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::path::Path;

    use potok_config::{Location, Secret};

    use super::*;

    #[test]
    fn a_file_is_where_its_setting_says_or_in_the_data_folder() {
        let path_of = |text: Option<&str>| {
            let location = text
                .map(|text| Location { text: Secret::new(text), base_dir: PathBuf::from("etc") });
            let (name, data_dir) = ("shop-0", Path::new("data"));
            path(&DatabaseLocation { name, location: location.as_ref(), data_dir })
        };
        assert_eq!(path_of(None), Path::new("data/db/shop-0.sqlite"));
        assert_eq!(path_of(Some("sqlite")), Path::new("data/db/shop-0.sqlite"));
        assert_eq!(path_of(Some("sqlite:a.db")), Path::new("etc/a.db"));
        assert_eq!(path_of(Some("sqlite:/a.db")), Path::new("/a.db"));
        for text in ["sqlit", "sqlite:", "postgres://h"] {
            assert!(!(DATABASE.takes)(text), "{text}");
        }
    }
}

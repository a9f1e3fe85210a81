//! A certificate for loopback, and the authority that signed it, for services that speak TLS.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::folder::Folder;
use crate::{programs, run};

/// PEM files, valid for `localhost`, `127.0.0.1` and `0.0.0.0`, by which one reaches this machine
/// too, though it is no loopback address.
#[derive(Clone, Debug)]
pub struct Certificate {
    /// The authority a client has to trust.
    pub authority: PathBuf,
    /// The service's own certificate.
    pub certificate: PathBuf,
    /// Its key, PKCS#8.
    pub key: PathBuf,
}

/// Months of a machine that stays up are enough.
const DAYS: &str = "365";

impl Certificate {
    /// Makes one inside `folder`, or finds the one made there before.
    pub fn make(folder: &Folder) -> Result<Self> {
        let place = folder.inner("tls")?;
        let file = |name: &str| place.join(name);
        let made = Certificate {
            authority: file("authority.pem"),
            certificate: file("certificate.pem"),
            key: file("key.pem"),
        };
        if made.certificate.is_file() {
            return Ok(made);
        }
        let names =
            "subjectAltName=IP:127.0.0.1,IP:0.0.0.0,DNS:localhost\nbasicConstraints=CA:FALSE\n";
        folder.write("tls/names", names)?;
        // A certificate that signs itself would not do: some clients refuse an authority as a
        // service.
        let openssl = |line: &str| {
            let mut command = Command::new(programs::openssl()?);
            command.args(line.split_whitespace()).current_dir(&place);
            run::output(command)
        };
        openssl(&format!(
            "req -x509 -newkey rsa:2048 -nodes -days {DAYS} -subj /CN=potok-test-authority \
             -keyout authority-key.pem -out authority.pem"
        ))?;
        openssl("req -new -newkey rsa:2048 -nodes -subj /CN=localhost -keyout key.pem -out asked")?;
        openssl(&format!(
            "x509 -req -in asked -CA authority.pem -CAkey authority-key.pem -CAcreateserial \
             -days {DAYS} -extfile names -out certificate.pem"
        ))?;
        Ok(made)
    }
}

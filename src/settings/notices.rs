//! Where notices are sent.

use std::{fs, path::Path, sync::Arc};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use http::Uri;

use super::reader::{
    SettingReader,
    form::{Custom, OrOff},
};
use crate::{
    net::tls::{
        client::{TlsAdvice, TlsClient, TlsFiles},
        last_good::OfFile,
    },
    notices::Webhook,
};

const URL: Custom<Uri> = Custom { name: "URL", read: url };

const FLAG: &str = "notices-url";
const KEY: &str = "notices-key-file";

/// How Standard Webhooks write a key.
const KEY_PREFIX: &str = "whsec_";
const KEY_BYTES: std::ops::RangeInclusive<usize> = 24..=64;

const TLS_ADVICE: TlsAdvice = TlsAdvice {
    files: "the TLS files of --notices-url",
    trust: "set SSL_CERT_FILE to its CA",
    name: "use one of its names in --notices-url",
    plain: "use http:// in --notices-url",
};

/// The text may hold a secret, so no problem repeats it.
fn url(text: &str) -> Result<Uri, String> {
    let url: Option<Uri> = text.parse().ok();
    let is_http = |url: &Uri| matches!(url.scheme_str(), Some("http" | "https"));
    let url = url.filter(|url| is_http(url) && url.host().is_some());
    let url = url.ok_or("must be a URL with http:// or https:// and a host")?;
    if url.authority().is_some_and(|authority| authority.as_str().contains('@')) {
        return Err("must be without a user and a password, which are not sent".to_owned());
    }
    Ok(url)
}

pub(super) fn read(reader: &mut SettingReader<'_>) -> Option<Webhook> {
    let help = "Send notices to this URL, as CloudEvents";
    let url = reader.read(FLAG, OrOff(URL), "off", help);
    let help =
        "File with the key that signs notices, as Standard Webhooks have it: whsec_ and base64";
    let key = reader.read_path(KEY, help);
    let Some(url) = url else {
        reader.warn_unused(KEY, "--notices-url is off");
        return None;
    };
    let key = key.map(|path| OfFile::load("the contents of --notices-key-file", path, read_key));
    let key = key.transpose().unwrap_or_else(|problem| {
        reader.problem(KEY, &problem);
        None
    });
    let is_secure = url.scheme_str() == Some("https");
    let tls = is_secure.then(|| TlsClient::new(TlsFiles::default(), None, &TLS_ADVICE));
    Some(Webhook { url, tls: tls.map(Arc::new), key: key.map(Arc::new) })
}

fn read_key(path: &Path) -> Result<Vec<u8>, String> {
    let name = path.display();
    let text = fs::read_to_string(path).map_err(|error| format!("{name}: {error}"))?;
    let text = text.trim();
    let key = BASE64.decode(text.strip_prefix(KEY_PREFIX).unwrap_or(text)).ok();
    let key = key.filter(|key| KEY_BYTES.contains(&key.len()));
    key.ok_or_else(|| format!("{name}: must hold whsec_ and 24 to 64 bytes in base64"))
}

//! How the store's servers are entered: passwords and TLS.

use std::{path::PathBuf, sync::Arc};

use super::url::{RedisUrl, TLS_ADVICE, TopologyKind};
use crate::{
    net::tls::client::TlsClient,
    settings::{
        reader::{SettingReader, environment::Given, form::Custom, translated::Login},
        tls::TlsSettings,
    },
    store::redis::wire::{
        endpoint::{Access, AclUser},
        password::{Password, PasswordFile},
    },
};

/// The settings beside the URL. Files are only named: each is read when it is needed.
pub(super) struct StoreAccess {
    password: Option<Password>,
    sentinel_user: Option<String>,
    sentinel_password: Option<Password>,
    tls: TlsSettings,
}

pub(super) const STORE: &str = "store";
const PASSWORD: &str = "store-password-file";
const SENTINEL_USER: &str = "store-sentinel-user";
const SENTINEL_PASSWORD: &str = "store-sentinel-password-file";

const TLS: [&str; 4] = ["store-tls-ca", "store-tls-cert", "store-tls-key", "store-tls-name"];

impl StoreAccess {
    pub(super) fn read(reader: &mut SettingReader<'_>) -> Self {
        let password = reader.read_path(PASSWORD, "File with the password of Redis");
        let help = "User at the Sentinels";
        let form = Custom { name: "NAME", read: |name| Ok(name.to_owned()) };
        let sentinel_user = reader.read_optional(SENTINEL_USER, &form, "", help);
        let sentinel_password =
            reader.read_path(SENTINEL_PASSWORD, "File with the password of the Sentinels");
        Self {
            password: password.map(|path| in_file(PASSWORD, path)),
            sentinel_user,
            sentinel_password: sentinel_password.map(|path| in_file(SENTINEL_PASSWORD, path)),
            tls: TlsSettings::read(reader, TLS),
        }
    }

    /// Warns that memory has no use for any of them.
    pub(super) fn warn_of_memory(&self, reader: &mut SettingReader<'_>) {
        reader.warn_unused(PASSWORD, "memory:// takes no password");
        for flag in [SENTINEL_USER, SENTINEL_PASSWORD] {
            reader.warn_unused(flag, "memory:// has no connections");
        }
        self.tls.warn_unused(reader, "memory:// has no connections");
    }

    /// Reports password files that cannot be read or are empty.
    pub(super) fn check(&self, reader: &mut SettingReader<'_>) {
        for (flag, password) in
            [(PASSWORD, &self.password), (SENTINEL_PASSWORD, &self.sentinel_password)]
        {
            if let Some(Err(problem)) = password.as_ref().map(Password::read) {
                reader.problem(flag, &problem);
            }
        }
    }

    /// The URL with these settings. Reports TLS files that cannot be used, and warns about what the URL has
    /// no use for.
    pub(super) fn add_to(
        self,
        Given { value: mut url, name }: Given<RedisUrl>,
        reader: &mut SettingReader<'_>,
    ) -> RedisUrl {
        if url.access.tls.is_some() {
            let connect = |files, name| TlsClient::new(files, name, &TLS_ADVICE);
            let client = Some(self.tls.client(reader, STORE, connect));
            Arc::make_mut(&mut url.access).tls.clone_from(&client);
            Arc::make_mut(&mut url.sentinel_access).tls = client;
        } else {
            self.tls.warn_unused(reader, "only rediss:// uses TLS");
        }
        if self.password.is_some() {
            if url.access.password.is_some() {
                let problem = format!("the URL of {name} has a password too: remove one");
                reader.problem(PASSWORD, &problem);
            }
            Arc::make_mut(&mut url.access).password = self.password;
        }
        log_in(&mut url.access, reader.translated.login.take());
        if let (Some(AclUser::Named(_)), None) = (&url.access.user, &url.access.password) {
            // Such a user is often a password, and users are shown.
            let problem = "has a user and no password: write :PASSWORD@ or USER:PASSWORD@, or set";
            reader.problem(STORE, &format!("{problem} --{PASSWORD}"));
        }
        let sentinel = Arc::make_mut(&mut url.sentinel_access);
        sentinel.user = self.sentinel_user.map(AclUser::Named);
        sentinel.password = self.sentinel_password;
        log_in(&mut url.sentinel_access, reader.translated.sentinel_login.take());
        if !matches!(url.topology, TopologyKind::Sentinel { .. }) {
            for flag in [SENTINEL_USER, SENTINEL_PASSWORD] {
                reader.warn_unused(flag, "only redis+sentinel:// has Sentinels");
            }
        }
        url
    }
}

/// Adds the login of the environment of envoyproxy/ratelimit.
fn log_in(access: &mut Arc<Access>, login: Option<Login>) {
    if let Some(Login { user, password }) = login {
        let access = Arc::make_mut(access);
        access.user = access.user.take().or(user);
        access.password = Some(Password::Text(password));
    }
}

fn in_file(flag: &'static str, path: PathBuf) -> Password {
    Password::File(Arc::new(PasswordFile::new(flag, path)))
}

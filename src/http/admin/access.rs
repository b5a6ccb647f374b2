//! Who uses the admin address, and what it may do there.

use std::sync::{Arc, OnceLock};

use axum::{
    body::Body,
    extract::State,
    http::{HeaderMap, Request, header},
    middleware::Next,
    response::Response,
};

use super::refused::Refused;
use crate::{
    audit::Audit,
    authorization::{AdminTokens, DomainAccess, Right},
    edge::health::Health,
    engine::{descriptor_syntax, request::Entry},
    http::{browser, json::Decisions, report::Reports, serve::Peer, status::History},
    limiter::Limiter,
    net::tls::server::Identity,
    rls::Claims,
};

#[derive(Debug, Clone)]
pub struct Admin {
    /// The limiter, and the domains of each client.
    pub decisions: Decisions,
    pub reports: Reports,
    /// What the service did in the last hours.
    pub history: Arc<History>,
    pub health: Health,
    pub audit: Arc<Audit>,
    /// The tokens that clients show, if they must show one.
    pub tokens: Option<Arc<AdminTokens>>,
    /// Whether clients of this address identify themselves with certificates.
    pub identifies_clients: bool,
    /// The domains of each client, if it is not the token that decides.
    pub access: Option<Arc<DomainAccess>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WebPages {
    /// None: the status page does not need it.
    NoPage,
    /// The status page, which has the endpoint's origin.
    StatusPage,
    /// The status page, if its user has typed in a token. Without tokens no page may change anything: a browser makes
    /// requests that its user does not see, and adds certificates to them by itself. The header of the token is one that a
    /// form cannot send.
    StatusPageWithToken,
}

/// A client of the admin address, in the extensions of its requests, and what it uses.
#[derive(Debug, Clone)]
pub(super) struct Actor {
    pub(super) admin: Admin,
    /// The first name of its certificate, else the name of its token, else its address.
    name: Arc<str>,
    /// The name of its certificate that has given it the right to change something.
    permitted: Arc<OnceLock<String>>,
    identity: Option<Identity>,
    /// What its token allows; without tokens, everything.
    right: Result<Right, &'static str>,
}

pub(super) async fn identify(
    State(admin): State<Admin>,
    mut request: Request<Body>,
    next: Next,
) -> Response {
    let extensions = request.extensions();
    let identity = extensions.get::<Identity>().cloned();
    let of_certificate = identity.as_ref().and_then(|identity| identity.0.first());
    let (token, right) = match (&admin.tokens, bearer(request.headers())) {
        (None, _) => (None, Ok(Right::Change)),
        (Some(_), None) => (None, Err("a bearer token is required")),
        (Some(tokens), Some(shown)) => match tokens.find(shown) {
            Some(token) => (Some(token.name), Ok(token.right)),
            None => (None, Err("invalid bearer token")),
        },
    };
    let peer = || extensions.get::<Peer>().map_or("unknown".to_owned(), |peer| peer.0.to_string());
    let name = of_certificate.map(|name| name.as_str().into()).or(token);
    let name = name.unwrap_or_else(|| peer().into());
    request.extensions_mut().insert(Actor {
        admin,
        name,
        permitted: Arc::default(),
        identity,
        right,
    });
    next.run(request).await
}

impl Actor {
    /// Who it is, for the audit.
    pub(super) fn name(&self) -> &str {
        self.permitted.get().map_or(&*self.name, String::as_str)
    }

    pub(super) fn limiter(&self) -> &Limiter {
        &self.admin.decisions.service.limiter
    }

    pub(super) fn quotas(&self) -> &Claims {
        &self.admin.decisions.service.quotas
    }

    /// Refuses a client that shows no token, if there are any. Web pages are recognized by their headers; without tokens
    /// or certificates, `Host` must be an IP address or localhost too.
    pub(super) fn refuse_stranger(
        &self,
        pages: WebPages,
        headers: &HeaderMap,
    ) -> Result<(), Refused> {
        let Self { admin, right, .. } = self;
        if let Err(problem) = right {
            return Err(Refused::unauthorized(problem));
        }
        let may_be_own_page = match pages {
            WebPages::NoPage => false,
            WebPages::StatusPage => true,
            WebPages::StatusPageWithToken => admin.tokens.is_some(),
        };
        let is_from_web_page = match may_be_own_page {
            true => browser::is_from_other_origin(headers),
            false => browser::is_from_web_page(headers),
        };
        let is_identified = admin.tokens.is_some() || admin.identifies_clients;
        if is_from_web_page {
            Err(Refused::cross_site("requests from web pages are not allowed"))
        } else if !is_identified && !browser::host_is_ip_or_localhost(headers) {
            Err(Refused::cross_site("host: must be an IP address or localhost"))
        } else {
            Ok(())
        }
    }

    pub(super) fn check(&self, domain: &str, right: Right) -> Result<(), Refused> {
        if right == Right::Change && self.right != Ok(Right::Change) {
            return Err(Refused::forbidden("this token may only read"));
        }
        let Some(access) = &self.admin.access else { return Ok(()) };
        let checked = access.check(self.identity.as_ref(), domain, right);
        let name = checked.map_err(|problem| Refused::forbidden(&problem.to_string()))?;
        if right == Right::Change {
            self.permitted.get_or_init(|| name.to_owned());
        }
        Ok(())
    }

    /// The descriptors that lists show by these digests, as many as a call may have.
    pub(super) async fn descriptors_of(
        &self,
        domain: &str,
        digests: &[&str],
    ) -> Result<Vec<String>, Refused> {
        self.check(domain, Right::Read)?;
        self.admin.decisions.service.bounds.check_descriptors(digests.len())?;
        let found = self.limiter().descriptors_of(domain, digests).await?.into_iter();
        let descriptor = |(found, digest): (Option<Option<Vec<Entry>>>, &&str)| match found {
            Some(Some(entries)) => Ok(descriptor_syntax::write(&entries)),
            Some(None) => Err(Refused::not_found(&format!(
                "descriptor: {digest} has a value that is secret or over 128 bytes; write the descriptor itself"
            ))),
            None => Err(Refused::not_found(&format!(
                "descriptor: no counter of this domain has the digest {digest} now"
            ))),
        };
        found.zip(digests).map(descriptor).collect()
    }
}

/// The token of `Authorization: Bearer TOKEN`.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let shown = headers.get(header::AUTHORIZATION)?.as_bytes();
    let (scheme, token) = shown.split_at_checked(b"bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"bearer ").then_some(token)
}

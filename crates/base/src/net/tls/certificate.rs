//! What we read from a certificate ourselves: its validity, and the names of its holder. Whether it may be trusted is
//! rustls' affair.

use std::ops::Range;

use x509_parser::{extensions::GeneralName, parse_x509_certificate};

/// When a certificate is valid, in seconds since 1970; `None` if its DER cannot be read.
pub(super) fn validity(certificate: &[u8]) -> Option<Range<i64>> {
    let (_, certificate) = parse_x509_certificate(certificate).ok()?;
    let valid = certificate.validity();
    Some(valid.not_before.timestamp()..valid.not_after.timestamp())
}

/// The DNS names and URIs of a certificate's holder, without empty ones; none if its DER cannot be read.
pub(super) fn names(certificate: &[u8]) -> Vec<String> {
    let Ok((_, certificate)) = parse_x509_certificate(certificate) else { return Vec::new() };
    let names = certificate.subject_alternative_name().ok().flatten();
    let names = names.iter().flat_map(|names| &names.value.general_names);
    let texts = names.filter_map(|name| match name {
        GeneralName::DNSName(name) | GeneralName::URI(name) => Some((*name).to_owned()),
        _ => None,
    });
    texts.filter(|name| !name.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, SanType, date_time_ymd};

    use super::*;

    fn certificate(names: Vec<SanType>, years: Range<i32>) -> Vec<u8> {
        let mut params = CertificateParams::default();
        params.subject_alt_names = names;
        params.not_before = date_time_ymd(years.start, 1, 1);
        params.not_after = date_time_ymd(years.end, 1, 1);
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
    }

    #[test]
    fn the_validity_is_read_in_both_of_its_forms() {
        assert_eq!(validity(&certificate(vec![], 1971..2000)), Some(31_536_000..946_684_800));
        assert_eq!(validity(&certificate(vec![], 2049..2050)), Some(2_493_072_000..2_524_608_000));
        assert_eq!(validity(&certificate(vec![], 2000..4096)).unwrap().end, 67_090_118_400);
    }

    #[test]
    fn a_certificate_may_have_no_end() {
        let mut params = CertificateParams::default();
        params.not_after = date_time_ymd(9999, 12, 31) + std::time::Duration::from_secs(86_399);
        let certificate = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        assert_eq!(validity(certificate.der()).unwrap().end, 253_402_300_799);
    }

    #[test]
    fn the_names_are_those_of_dns_and_the_uris() {
        let names = vec![
            SanType::DnsName("envoy.example".try_into().unwrap()),
            SanType::IpAddress([127, 0, 0, 1].into()),
            SanType::URI("spiffe://cluster/ns/shop".try_into().unwrap()),
        ];
        let certificate = certificate(names, 2000..2100);
        assert_eq!(super::names(&certificate), ["envoy.example", "spiffe://cluster/ns/shop"]);
    }

    #[test]
    fn no_bytes_cause_a_panic() {
        let good = certificate(vec![SanType::DnsName("a".try_into().unwrap())], 2000..2100);
        for end in 0..good.len() {
            names(&good[..end]);
            assert_eq!(validity(&good[..end]), None, "cut at {end}");
        }
        for index in 0..good.len() {
            for byte in [0, 0x7f, 0x80, 0x84, 0x88, 0xff] {
                let mut bad = good.clone();
                bad[index] = byte;
                names(&bad);
                validity(&bad);
            }
        }
    }
}

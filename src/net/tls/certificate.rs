//! What we read from a certificate ourselves: its validity, and the names of its holder. Whether it may be trusted is
//! rustls' affair.

use std::ops::Range;

use jiff::civil::{self, DateTime};

// Tags of DER.
const INTEGER: u8 = 0x02;
const OCTETS: u8 = 0x04;
const SEQUENCE: u8 = 0x30;
const UTC_TIME: u8 = 0x17;
const VERSION: u8 = 0xa0;
const EXTENSIONS: u8 = 0xa3;
const DNS_NAME: u8 = 0x82;
const URI: u8 = 0x86;

const EPOCH: DateTime = civil::date(1970, 1, 1).at(0, 0, 0, 0);

/// The extension with the holder's names: 2.5.29.17.
const SUBJECT_ALT_NAME: &[u8] = &[0x55, 0x1d, 0x11];

/// A part of a certificate's DER that is still to be read.
struct Der<'a>(&'a [u8]);

impl<'a> Der<'a> {
    /// The tag and the content of the next element.
    fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let (&tag, rest) = self.0.split_first()?;
        let (&first, rest) = rest.split_first()?;
        let (length, rest) = match usize::from(first) {
            short @ 0..0x80 => (short, rest),
            long => {
                let (bytes, rest) = rest.split_at_checked(long - 0x80)?;
                let length = bytes.iter().try_fold(0_usize, |length, byte| {
                    length.checked_mul(256)?.checked_add(usize::from(*byte))
                })?;
                (length, rest)
            }
        };
        let (content, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        Some((tag, content))
    }

    /// The content of the next element, which has this tag.
    fn expect(&mut self, expected: u8) -> Option<&'a [u8]> {
        self.next().filter(|(tag, _)| *tag == expected).map(|(_, content)| content)
    }
}

/// The fields from the validity on.
fn from_validity(certificate: &[u8]) -> Option<Der<'_>> {
    let mut fields = Der(Der(Der(certificate).expect(SEQUENCE)?).expect(SEQUENCE)?);
    let (tag, _) = fields.next()?;
    if tag == VERSION {
        fields.expect(INTEGER)?;
    }
    // The signature's algorithm, and the issuer.
    fields.expect(SEQUENCE)?;
    fields.expect(SEQUENCE)?;
    Some(fields)
}

/// When a certificate is valid, in seconds since 1970; `None` if its DER cannot be read.
pub(super) fn validity(certificate: &[u8]) -> Option<Range<i64>> {
    let mut times = Der(from_validity(certificate)?.expect(SEQUENCE)?);
    Some(time(times.next()?)?..time(times.next()?)?)
}

fn time((tag, text): (u8, &[u8])) -> Option<i64> {
    let text = std::str::from_utf8(text).ok()?;
    // A year of two digits is from 1950 to 2049.
    let century = match tag {
        UTC_TIME if text < "50" => "20",
        UTC_TIME => "19",
        _ => "",
    };
    let time = DateTime::strptime("%Y%m%d%H%M%SZ", format!("{century}{text}")).ok()?;
    // A `Timestamp` ends before 99991231235959Z, which stands for no end.
    Some(time.duration_since(EPOCH).as_secs())
}

/// The DNS names and URIs of a certificate's holder.
pub(super) fn names(certificate: &[u8]) -> Vec<String> {
    let names = subject_alt_names(certificate).unwrap_or_default();
    let mut names = Der(names);
    let mut found = Vec::new();
    while let Some((tag, name)) = names.next() {
        if let (DNS_NAME | URI, Ok(name)) = (tag, std::str::from_utf8(name)) {
            found.push(name.to_owned());
        }
    }
    found
}

fn subject_alt_names(certificate: &[u8]) -> Option<&[u8]> {
    let mut fields = from_validity(certificate)?;
    while let Some((tag, content)) = fields.next() {
        if tag != EXTENSIONS {
            continue;
        }
        let mut extensions = Der(Der(content).expect(SEQUENCE)?);
        while let Some(extension) = extensions.expect(SEQUENCE) {
            let mut extension = Der(extension);
            if extension.next()?.1 == SUBJECT_ALT_NAME {
                // A flag may be before the value.
                let value = std::iter::from_fn(|| extension.next()).find(|(tag, _)| *tag == OCTETS);
                return Der(value?.1).expect(SEQUENCE);
            }
        }
    }
    None
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

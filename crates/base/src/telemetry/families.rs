//! The metrics of a scrape, which are found by the definitions of their instruments.

use prometheus::{
    TextEncoder,
    proto::{Bucket, Histogram, LabelPair, Metric, MetricFamily},
};

use super::instrument::InstrumentRow;

#[derive(Debug)]
pub struct Families(pub Vec<MetricFamily>);

impl Families {
    /// The series of an instrument; none before its first value.
    pub fn metrics(&self, row: &InstrumentRow) -> &[Metric] {
        let name = row.prometheus_name();
        let family = self.0.iter().find(|family| family.name() == name);
        family.map_or(&[], MetricFamily::get_metric)
    }

    /// The value of the series with this label.
    pub fn find(&self, row: &InstrumentRow, name: &str, expected: &str) -> Option<u64> {
        self.metrics(row).iter().find(|metric| label(metric, name) == expected).map(value)
    }

    pub fn sum(&self, row: &InstrumentRow) -> u64 {
        self.metrics(row).iter().map(value).fold(0, u64::saturating_add)
    }

    /// The sum of all series of a histogram, which have the same buckets.
    pub fn merged(&self, row: &InstrumentRow) -> Histogram {
        let (mut count, mut sum, mut buckets) = (0, 0.0, Vec::<Bucket>::new());
        for histogram in self.metrics(row).iter().map(Metric::get_histogram) {
            count += histogram.get_sample_count();
            sum += histogram.get_sample_sum();
            if buckets.is_empty() {
                buckets = histogram.get_bucket().to_vec();
                continue;
            }
            for (bucket, other) in buckets.iter_mut().zip(histogram.get_bucket()) {
                bucket.set_cumulative_count(bucket.cumulative_count() + other.cumulative_count());
            }
        }
        let mut merged = Histogram::default();
        merged.set_sample_count(count);
        merged.set_sample_sum(sum);
        merged.set_bucket(buckets);
        merged
    }

    /// # Errors
    /// A family cannot be written as text, such as one without series.
    pub fn text(&self) -> Result<String, prometheus::Error> {
        TextEncoder::new().encode_to_string(&self.0)
    }
}

/// The value of a label; empty if the series does not have it.
pub fn label<'metric>(metric: &'metric Metric, name: &str) -> &'metric str {
    let pair = metric.get_label().iter().find(|pair| pair.name() == name);
    pair.map_or("", LabelPair::value)
}

/// The value of a counter or a gauge. All that are read are whole numbers from 0 to below 2^53.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "see above")]
pub fn value(metric: &Metric) -> u64 {
    metric.get_counter().get_value().max(metric.get_gauge().get_value()).max(0.0) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_that_cannot_be_written_is_an_error_and_no_empty_scrape() {
        assert!(Families(vec![MetricFamily::default()]).text().is_err());
        assert_eq!(Families(Vec::new()).text().expect("a text"), "");
    }
}

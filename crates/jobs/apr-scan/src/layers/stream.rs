//! Pickles one after the other, and what is in their values.

use apr_core::ByteSource;

use apr_pytorch::{Action, Blob, BlobBytes, Finding, PickleSurvey, Verdict};

use super::{Content, Expected, MAX_PICKLES, Scan, ScannedBytes, is_pickle};
use crate::content::text;
use crate::report::{PickleReport, Reached};

/// Pickles in front of a pre-ZIP file's storages.
const LEGACY_PICKLES: usize = 5;

impl Scan<'_> {
    /// Pickles one after the other, as far as there are any. Whether there were.
    pub(super) fn stream(&mut self, place: &ScannedBytes<'_>) -> bool {
        let mut position = place.start;
        let (mut legacy, mut any) = (false, false);
        for number in 0.. {
            // Raw storages follow the pickles of a legacy checkpoint.
            if position >= place.end {
                return any;
            }
            if legacy && number == LEGACY_PICKLES {
                // A program may go on unpickling all the same.
                let rest =
                    ScannedBytes { start: position, expected: Expected::Anything, ..place.clone() };
                return self.stream(&rest) || any;
            }

            // Of those that are no pickles there may be one for each two bytes.
            if self.report.pickles.len() == MAX_PICKLES || number == MAX_PICKLES {
                self.problem(place, &format!("only the first {MAX_PICKLES} pickles are looked at"));
                return any;
            }
            if !self.may_look(place) {
                return any;
            }

            let survey = self.survey(place, position, true);
            if number == 0 {
                legacy = survey.is_checkpoint_magic();
            }

            let (broken, next) = (!survey.is_whole(), survey.end);
            if self.is_one(place, position, &survey, number) {
                any = true;
                if survey.has_file_arrays {
                    self.as_plain_pickle(place, position, &survey.findings);
                }
                self.add(place, position, survey);
            }

            if broken {
                return any;
            }

            position = next;
        }

        any
    }

    fn survey(&self, place: &ScannedBytes<'_>, position: u64, joblib: bool) -> PickleSurvey {
        PickleSurvey::read(place.source, (position, place.end), joblib, self.limits)
    }

    /// Returns `true` if the bytes that were read are a pickle.
    ///
    /// Bytes after a pickle need not be one.
    fn is_one(
        &self,
        place: &ScannedBytes<'_>,
        position: u64,
        survey: &PickleSurvey,
        number: usize,
    ) -> bool {
        let whole = survey.is_whole();
        if place.expected == Expected::Pickle {
            return number == 0 || whole || !survey.findings.is_empty();
        }
        let mut head = [0; 2];
        let marked = place.source.read_at(position, &mut head).is_ok() && is_pickle(&head);
        if place.text && !marked {
            let named = |finding: &&Finding| {
                finding.verdict == Verdict::Dangerous || finding.action != Action::Import
            };
            let named: Vec<Finding> = survey.findings.iter().filter(named).cloned().collect();
            return survey.would_run(&named);
        }
        // Two bytes such as `N.` are a whole pickle by chance, and so are lines of a text after
        // a full stop, of which Python's unpickler makes nothing.
        let long = survey.end - position > 2;
        let follows = number > 0 && survey.stuck.is_none() && !Self::is_plain(place);
        (whole && long && (marked || follows)) || survey.would_run(&survey.findings)
    }

    /// Returns `true` if the first bytes are a text, such as a list of names that begin with a
    /// full stop.
    fn is_plain(place: &ScannedBytes<'_>) -> bool {
        place.head().is_ok_and(|head| text::is_plain(&head))
    }

    /// Examines the bytes as `pickle.load` reads them, which takes joblib's arrays for opcodes.
    ///
    /// The effects of a payload in the arrays are also reported.
    fn as_plain_pickle(&mut self, place: &ScannedBytes<'_>, position: u64, known: &[Finding]) {
        let survey = self.survey(place, position, false);
        let new = |finding: &&Finding| !known.iter().any(|other| other.offset == finding.offset);
        let findings: Vec<Finding> = survey.findings.iter().filter(new).cloned().collect();
        if survey.would_run(&findings) {
            self.warn(place, "bytes of an array are opcodes if it is loaded without joblib");
            let within = place.within("as pickle.load reads it");
            self.report.pickles.push(report(&within, position, findings, None));
        }
    }

    fn add(&mut self, place: &ScannedBytes<'_>, position: u64, mut survey: PickleSurvey) {
        for finding in survey.findings.iter_mut().filter(|_| !place.torch) {
            // Elsewhere than in PyTorch's archives, this would be a package that lies beside.
            if finding.module.split('.').next() == Some("__torch__") {
                finding.verdict = finding.verdict.max(Verdict::Unknown);
            }
        }
        if let Some(error) = &survey.swept {
            self.report.notes.push(place.says(&format!(
                "only the names that it imports were looked at from here on, not its values: \
                 {error}"
            )));
        }
        let problem = survey.problem.map(|error| error.to_string());
        self.report.pickles.push(report(place, position, survey.findings, problem));
        let dropped = survey.dropped;
        if dropped > 0 {
            self.problem(
                place,
                &format!("{dropped} values that may hold pickles are too many to be looked into"),
            );
        }
        for blob in survey.values {
            self.value(place, &blob);
        }
    }

    fn value(&mut self, place: &ScannedBytes<'_>, blob: &Blob) {
        let reached =
            if place.reached == Reached::Nobody { Reached::Nobody } else { Reached::Value };
        let place = ScannedBytes {
            reached,
            expected: Expected::Anything,
            kind: Content::Part,
            ..place.clone()
        };
        let at = blob.offset;
        match &blob.bytes {
            BlobBytes::Lying(start, end) => {
                let within = place.within(&format!("value at byte {at}"));
                self.look(&ScannedBytes { start: *start, end: *end, ..within });
            }
            BlobBytes::Unescaped(bytes) => {
                self.look(&place.decoded(bytes as &dyn ByteSource, &format!("value at byte {at}")));
            }
            BlobBytes::Encoded(by, bytes) => {
                let within = format!("{by} in the value at byte {at}");
                self.look(&place.decoded(bytes as &dyn ByteSource, &within));
            }
        }
    }
}

fn report(
    place: &ScannedBytes<'_>,
    offset: u64,
    findings: Vec<Finding>,
    problem: Option<String>,
) -> PickleReport {
    let ScannedBytes { entry, decoded, reached, .. } = place.clone();
    PickleReport { entry, offset, decoded, reached, findings, problem }
}

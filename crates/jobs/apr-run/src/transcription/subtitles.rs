//! Transcriptions as subtitles: SubRip (`.srt`) and WebVTT (<https://www.w3.org/TR/webvtt1/>).

use std::fmt::Write;

use super::{Segment, Transcription};

impl Transcription {
    /// The segments as SubRip has them: numbers, times to the millisecond after a comma, texts.
    /// Segments without a text are left out.
    #[must_use]
    pub fn to_srt(&self) -> String {
        let mut made = String::new();
        for (number, (times, text)) in cues(&self.segments, Times::SubRip).enumerate() {
            let _ = write!(made, "{}\n{times}\n{text}\n\n", number + 1);
        }
        made
    }

    /// The segments as WebVTT has them, with `&`, `<` and `>` as entities. Times before the first
    /// hour have no hours, as OpenAI's. Segments without a text are left out.
    #[must_use]
    pub fn to_vtt(&self) -> String {
        let mut made = "WEBVTT\n\n".to_owned();
        for (times, text) in cues(&self.segments, Times::WebVtt) {
            let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
            let _ = write!(made, "{times}\n{text}\n\n");
        }
        made
    }
}

/// How times are written.
#[derive(Clone, Copy)]
enum Times {
    /// Always with hours, milliseconds after a comma.
    SubRip,
    /// With hours if there are any, milliseconds after a point.
    WebVtt,
}

/// The line of times, and the text on a line of its own.
fn cues(segments: &[Segment], way: Times) -> impl Iterator<Item = (String, String)> {
    segments.iter().filter_map(move |segment| {
        // A line break would end the cue, an arrow would be another line of times.
        let text = segment.text.split_whitespace().collect::<Vec<_>>().join(" ");
        let text = text.replace(char::is_control, "").replace("-->", "->");
        let end = segment.end.max(segment.start);
        let times = format!("{} --> {}", time(segment.start, way), time(end, way));
        (!text.is_empty()).then_some((times, text))
    })
}

/// Hours, minutes, seconds and milliseconds.
fn time(seconds: f64, way: Times) -> String {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "seconds of a sound, from 0 on"
    )]
    let all = (seconds.max(0.0) * 1000.0).round() as u64;
    let (seconds, milliseconds) = (all / 1000, all % 1000);
    let (minutes, seconds) = (seconds / 60, seconds % 60);
    let (hours, minutes) = (minutes / 60, minutes % 60);
    match way {
        Times::SubRip => format!("{hours:02}:{minutes:02}:{seconds:02},{milliseconds:03}"),
        Times::WebVtt if hours == 0 => format!("{minutes:02}:{seconds:02}.{milliseconds:03}"),
        Times::WebVtt => format!("{hours:02}:{minutes:02}:{seconds:02}.{milliseconds:03}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(start: f64, end: f64, text: &str) -> Segment {
        Segment {
            id: 0,
            seek: 0,
            start,
            end,
            text: text.to_owned(),
            tokens: Vec::new(),
            words: None,
            avg_logprob: -0.1,
            compression_ratio: 1.0,
            no_speech_prob: None,
            temperature: 0.0,
        }
    }

    #[test]
    fn cues_have_times_and_texts_on_one_line() {
        let segments = [
            segment(0.0, 2.5, " Hello,\n\n\nthere."),
            segment(2.5, 3.0, " "),
            segment(3723.0456, 3723.0, " a --> b"),
        ];
        let made: Vec<_> = cues(&segments, Times::SubRip).collect();
        assert_eq!(
            made,
            [
                ("00:00:00,000 --> 00:00:02,500".to_owned(), "Hello, there.".to_owned()),
                ("01:02:03,046 --> 01:02:03,046".to_owned(), "a -> b".to_owned()),
            ]
        );
        let made: Vec<_> = cues(&segments, Times::WebVtt).map(|(times, _)| times).collect();
        assert_eq!(made, ["00:00.000 --> 00:02.500", "01:02:03.046 --> 01:02:03.046"]);
    }
}

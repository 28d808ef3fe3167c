//! Sound files: WAV, AIFF, FLAC, MP3, Ogg Vorbis.

use std::io::{Cursor, ErrorKind};

use apr_core::{Error, Result};
use symphonia::core::codecs::audio::{AudioDecoder, AudioDecoderOptions};
use symphonia::core::errors::Error as SoundError;
use symphonia::core::formats::probe::Hint;
use symphonia::core::formats::{FormatOptions, FormatReader, TrackType};
use symphonia::core::io::MediaSourceStream;
use symphonia::core::meta::MetadataOptions;
use symphonia::core::packet::Packet;

use super::Sound;
use super::repair::repair;
use crate::guard::guarded;

/// Channels of a sound.
const MAX_CHANNELS: usize = 64;
/// Packets that can't be decoded before the file counts as damaged.
const MAX_DAMAGED: usize = 8;

/// Decodes an audio file. Returns the audio with its channels averaged, and warnings about problems
/// that did not prevent decoding.
///
/// # Errors
/// E001 for a file that is not audio or is damaged, E003 for an unsupported kind, E008 for more
/// than `most` samples.
pub fn decode(bytes: Vec<u8>, most: usize) -> Result<(Sound, Vec<String>)> {
    if bytes.is_empty() {
        return Err(Error::format("the file is empty"));
    }
    guarded("the sound", || read(bytes, most))
}

fn read(mut bytes: Vec<u8>, most: usize) -> Result<(Sound, Vec<String>)> {
    repair(&mut bytes);
    let stream = MediaSourceStream::new(Box::new(Cursor::new(bytes)), Default::default());
    let (format, metadata) = (FormatOptions::default(), MetadataOptions::default());
    let mut format = symphonia::default::get_probe()
        .probe(&Hint::new(), stream, format, metadata)
        .map_err(|error| wrong(&error))?;
    let track = format
        .default_track(TrackType::Audio)
        .ok_or_else(|| Error::format("the file has no audio track"))?;
    let (number, expected) = (track.id, track.num_frames);
    let parameters = track.codec_params.as_ref().and_then(|parameters| parameters.audio());
    let parameters = parameters.ok_or_else(|| Error::version("unknown audio codec of the file"))?;
    if let Some(frames) = expected.filter(|frames| *frames > most as u64) {
        return Err(too_long(frames, most));
    }

    let options = AudioDecoderOptions::default();
    let decoder = symphonia::default::get_codecs().make_audio_decoder(parameters, &options);
    let decoder = decoder.map_err(|error| wrong(&error))?;
    let mut reading = Reading { decoder, most, sound: None, damaged: 0 };
    let cut = reading.all(&mut *format, number)?;
    let sound = reading.sound.ok_or_else(|| Error::format("the audio is empty: no samples"))?;
    let mut warnings = Vec::new();
    if reading.damaged > 0 {
        warnings.push(format!(
            "{} of the audio are damaged and skipped",
            apr_core::counted(reading.damaged as u64, "packet")
        ));
    }

    let length = sound.samples.len() as u64;

    // Some coders round the length up to whole blocks.
    if cut || expected.is_some_and(|expected| length + u64::from(sound.rate / 20) < expected) {
        let expected = expected.map_or_else(String::new, |expected| format!(" of {expected}"));
        warnings.push(format!("the file is truncated: {length} samples{expected}"));
    }

    Ok((sound, warnings))
}

struct Reading {
    decoder: Box<dyn AudioDecoder>,
    most: usize,
    sound: Option<Sound>,
    damaged: usize,
}

impl Reading {
    /// Reads all packets of a track. Returns `true` if the file ends inside a packet.
    fn all(&mut self, format: &mut dyn FormatReader, track: u32) -> Result<bool> {
        let mut interleaved = Vec::new();
        loop {
            let packet = match format.next_packet() {
                Ok(Some(packet)) => packet,
                Ok(None) => return Ok(false),
                Err(SoundError::IoError(error)) if error.kind() == ErrorKind::UnexpectedEof => {
                    return Ok(true);
                }
                Err(error) => return Err(wrong(&error)),
            };

            if packet.track_id == track && self.packet(&packet, &mut interleaved)? {
                return Ok(true);
            }
        }
    }

    /// Decodes a packet. Returns `true` if the file ends inside the packet.
    fn packet(&mut self, packet: &Packet, interleaved: &mut Vec<f32>) -> Result<bool> {
        match self.decoder.decode(packet) {
            Ok(buffer) => {
                let (rate, channels) = (buffer.spec().rate(), buffer.spec().channels().count());
                buffer.copy_to_vec_interleaved::<f32>(interleaved);
                self.add(interleaved, rate, channels)?;
            }
            Err(SoundError::DecodeError(_)) if self.damaged < MAX_DAMAGED => self.damaged += 1,
            Err(SoundError::IoError(error)) if error.kind() == ErrorKind::UnexpectedEof => {
                return Ok(true);
            }
            Err(error) => return Err(wrong(&error)),
        }
        Ok(false)
    }

    fn add(&mut self, interleaved: &[f32], rate: u32, channels: usize) -> Result<()> {
        if channels == 0 || channels > MAX_CHANNELS || rate == 0 {
            return Err(Error::format(format!(
                "audio with {channels} channels at {rate} Hz is not supported"
            )));
        }

        let sound = self.sound.get_or_insert_with(|| Sound { rate, channels, samples: Vec::new() });
        if (sound.rate, sound.channels) != (rate, channels) {
            return Err(Error::version(
                "the sample rate or the number of channels changes within \
                                       the file",
            ));
        }

        let frames = interleaved.len() / channels;
        if sound.samples.len() + frames > self.most {
            return Err(too_long((sound.samples.len() + frames) as u64, self.most));
        }

        #[expect(clippy::cast_precision_loss, reason = "at most 64")]
        let share = 1.0 / channels as f32;
        sound.samples.extend(
            interleaved.chunks_exact(channels).map(|frame| frame.iter().sum::<f32>() * share),
        );
        Ok(())
    }
}

fn too_long(frames: u64, most: usize) -> Error {
    Error::memory(format!(
        "the audio has {frames} samples or more, beyond the memory limit of {most}"
    ))
}

fn wrong(error: &SoundError) -> Error {
    match error {
        SoundError::Unsupported(what) => Error::version(format!(
            "unsupported audio format ({what}): expected WAV, AIFF, FLAC, MP3 or Ogg Vorbis"
        )),
        SoundError::LimitError(what) => Error::memory(format!("the audio exceeds a limit: {what}")),
        error => Error::format(format!("damaged audio: {error}")),
    }
}

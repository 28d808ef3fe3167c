//! Files of fixtures that are kept in JSON.

/// Returns the bytes of a text in base64.
///
/// # Panics
/// Where it is none.
#[must_use]
pub fn from_base64(text: &str) -> Vec<u8> {
    const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut made, mut bits, mut count) = (Vec::new(), 0_u32, 0);
    for letter in text.bytes().filter(|letter| *letter != b'=') {
        let place = LETTERS.iter().position(|known| *known == letter).expect("base64");
        bits = bits << 6 | u32::try_from(place).expect("below 64");
        count += 6;
        if count >= 8 {
            count -= 8;
            made.push((bits >> count & 0xff).to_le_bytes()[0]);
        }
    }
    made
}

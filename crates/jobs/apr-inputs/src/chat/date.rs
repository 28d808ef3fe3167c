//! Dates in templates, as Python's `strftime` writes them.

/// The date of a time in seconds since 1970 (civil-from-days, Howard Hinnant), in UTC. Codes that
/// depend on weeks or a locale stay as they are.
pub(super) fn date(now: i64, format: &str) -> String {
    const MONTHS: [&str; 12] = [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ];
    const DAYS: [&str; 7] =
        ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];

    let (days, seconds) = (now.div_euclid(86_400), now.rem_euclid(86_400));
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let of_era = shifted.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let name = MONTHS[usize::try_from(month - 1).unwrap_or(0)];
    let weekday = DAYS[usize::try_from(days.rem_euclid(7)).unwrap_or(0)];
    let mut text = String::new();
    let mut letters = format.chars();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            text.push(letter);
            continue;
        }

        // GNU's mark for a number without zeros or blanks in front.
        let mut code = letters.next();
        let is_bare = code == Some('-');
        if is_bare {
            code = letters.next();
        }
        let number = |number: i64, width: usize| match is_bare {
            true => number.to_string(),
            false => format!("{number:0width$}"),
        };
        let hour = seconds / 3600;
        let piece = match code {
            Some('Y') => year.to_string(),
            Some('y') => number(year.rem_euclid(100), 2),
            Some('m') => number(month, 2),
            Some('d') => number(day, 2),
            Some('e') if !is_bare => format!("{day:2}"),
            Some('e') => day.to_string(),
            Some('j') => number(days - days_before(year) + 1, 3),
            Some('B') => name.to_owned(),
            Some('b' | 'h') => name[..3].to_owned(),
            Some('A') => weekday.to_owned(),
            Some('a') => weekday[..3].to_owned(),
            Some('u') => ((3 + days).rem_euclid(7) + 1).to_string(),
            Some('w') => (4 + days).rem_euclid(7).to_string(),
            Some('H') => number(hour, 2),
            Some('I') => number((hour + 11) % 12 + 1, 2),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            Some('M') => number(seconds / 60 % 60, 2),
            Some('S') => number(seconds % 60, 2),
            Some('s') => now.to_string(),
            Some('f') => "000000".to_owned(),
            Some('F') => date(now, "%Y-%m-%d"),
            Some('D' | 'x') => date(now, "%m/%d/%y"),
            Some('T' | 'X') => date(now, "%H:%M:%S"),
            Some('R') => date(now, "%H:%M"),
            Some('c') => date(now, "%a %b %e %H:%M:%S %Y"),
            // The time of a clock that knows no zone.
            Some('Z' | 'z') => String::new(),
            Some('n') => "\n".to_owned(),
            Some('t') => "\t".to_owned(),
            Some('%') => "%".to_owned(),
            Some(other) => format!("%{}{other}", if is_bare { "-" } else { "" }),
            None => "%".to_owned(),
        };
        text.push_str(&piece);
    }

    text
}

/// Days from 1970 to the first of January of a year.
fn days_before(year: i64) -> i64 {
    let before = year - 1;
    let leaps = before.div_euclid(4) - before.div_euclid(100) + before.div_euclid(400);
    365 * before + leaps - 719_162
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_match_the_calendar() {
        assert_eq!(
            date(1_700_000_000, "%A %d %B %Y %H:%M:%S"),
            "Tuesday 14 November 2023 22:13:20"
        );
        assert_eq!(date(951_782_400, "%a %d %b %Y %%%q"), "Tue 29 Feb 2000 %%q");
        assert_eq!(date(-1, "%Y-%m-%d"), "1969-12-31");
    }
}

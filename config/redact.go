package config

import (
	"fmt"
	"regexp"
	"strings"
)

var (
	scheme      = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9+.-]*://`)
	listComma   = regexp.MustCompile(`,\s*(?:[A-Za-z][A-Za-z0-9+.-]*://|$)`)
	passwordKey = regexp.MustCompile(`(?is)(pass[a-z0-9%]*|pwd)(\s*=).*$`)
	hostAndPort = regexp.MustCompile(`^(\[[^\]]*\]|[^:]*)(:[0-9]*)?$`)
)

const mask = "***"

// Redact returns a URL or a list of keyword=value pairs without its password. The text need not be valid: where the
// password's end is not certain, rather too much is masked, such as everything up to the last @.
func Redact(text string) string {
	start := scheme.FindString(text)
	rest := text[len(start):]
	if at := strings.LastIndexByte(rest, '@'); at >= 0 {
		if user, _, ok := strings.Cut(rest[:at], ":"); ok {
			rest = user + ":" + mask + rest[at:]
		}
	} else if start != "" {
		// A URL whose host is missing: user and password stand where host and port should.
		authority, _, _ := strings.Cut(rest, "/")
		authority, _, _ = strings.Cut(authority, "?")
		for _, host := range strings.Split(authority, ",") {
			if !hostAndPort.MatchString(host) {
				user, _, _ := strings.Cut(rest, ":")
				rest = user + ":" + mask
				break
			}
		}
	}
	return start + passwordKey.ReplaceAllString(rest, "$1$2"+mask)
}

// shown is a value as messages show it: redacted, quoted if it is text, of limited length.
func shown(value any) string {
	text, ok := value.(string)
	if !ok {
		return fmt.Sprint(value)
	}
	text = Redact(text)
	const limit = 200
	if len(text) > limit {
		return fmt.Sprintf("%q and so on", strings.ToValidUTF8(text[:limit], ""))
	}
	return fmt.Sprintf("%q", text)
}

// splitURLs parts a list at the commas that are followed by another scheme, or by nothing.
func splitURLs(text string) []string {
	var urls []string
	for text = strings.TrimSpace(text); text != ""; text = strings.TrimSpace(text) {
		url := text
		text = ""
		if comma := listComma.FindStringIndex(url); comma != nil {
			url, text = url[:comma[0]], url[comma[0]+1:]
		}
		urls = append(urls, strings.TrimSpace(url))
	}
	return urls
}

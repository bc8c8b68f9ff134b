// Package kaf fetches kaf, which is built as it is; the module holds nothing else.
package kaf

module klamm/compat/srclient

go 1.26.0

require github.com/riferrei/srclient v0.7.3

require (
	github.com/golang/snappy v1.0.0 // indirect
	github.com/linkedin/goavro/v2 v2.13.1 // indirect
	github.com/santhosh-tekuri/jsonschema/v5 v5.0.0 // indirect
	golang.org/x/sync v0.0.0-20220513210516-0976fa681c29 // indirect
)

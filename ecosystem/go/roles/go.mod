module klamm/ecosystem/roles

go 1.26.0

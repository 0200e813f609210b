"""Two runs beside each other, by operation or task name: `report --compare A B`.

In the order of the data: `tasks` reads what is compared of each run, `difference` compares one
quantity of one row, `noise` has the statistical tests, `comparison` puts all names together,
`table` and `page` show the result. A is the reference, B the new run.
"""

"""Two runs beside each other, by task name: `report --compare A B`. noise has the tests,
comparison what is compared with what, table and page show it."""

"""Experiments: functions of a bench that give a result; what each is for, and how it is read again."""
